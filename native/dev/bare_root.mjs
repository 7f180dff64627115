// A bare Debian in a folder, by debootstrap, and commands that run inside of it. Mounts and processes are in namespaces
// of their own, which always end together with the command. Needs root.
import { cp, mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { SetupError, run } from './console.mjs';
import { findProgram } from './find.mjs';

/** The variables of this environment that configure network access. */
const NETWORK = ['http_proxy', 'https_proxy', 'no_proxy', 'npm_config_registry'];
const CERTIFICATES = 'NODE_EXTRA_CA_CERTS';
const CERTIFICATES_INSIDE = '/etc/ssl/certs/of-our-network.pem';

/** Throws a SetupError where no such root can be made. */
export function checkRootCanBeMade() {
  if (process.getuid?.() !== 0) throw new SetupError('A bare Debian is made by root', 'Run this as root.');
  if (!findProgram('debootstrap')) throw new SetupError('debootstrap was not found', 'Run: apt-get install debootstrap');
}

/**
 * Returns the command that runs a script inside the root, with /proc and with the shared memory that browsers need.
 * @param {string} root
 * @param {string} script
 * @param {string} [shared] a folder of this machine that has the same path inside
 */
export function commandIn(root, script, shared) {
  const passed = NETWORK.filter((name) => process.env[name]);
  const environment = [
    'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
    'HOME=/root',
    'DEBIAN_FRONTEND=noninteractive',
    ...(process.env[CERTIFICATES] ? [`${CERTIFICATES}=${CERTIFICATES_INSIDE}`] : []),
    ...passed.map((name) => `${name}=${process.env[name]}`),
  ];
  const mounts = [
    'mount -t proc proc "$0/proc"',
    'mkdir -p "$0/dev/shm" "$0$1"',
    'mount -t tmpfs tmpfs "$0/dev/shm"',
    ...(shared ? ['mount --bind "$1" "$0$1"'] : []),
    'shift',
    'exec chroot "$0" env -i "$@"',
  ];
  const unshare = ['unshare', '--mount', '--pid', '--fork', '--kill-child'];
  return [...unshare, 'sh', '-c', mounts.join(' && '), root, shared ?? '/root', ...environment, 'sh', '-c', script];
}

/** Makes `root` a new Debian of this suite with its base packages alone. */
export async function makeBareRoot(suite, root) {
  await rm(root, { recursive: true, force: true });
  await mkdir(root, { recursive: true });
  await run(['debootstrap', '--variant=minbase', '--include=ca-certificates', suite, root]);
  await cp('/etc/hosts', join(root, 'etc/hosts'));
  if (process.env[CERTIFICATES]) await cp(process.env[CERTIFICATES], join(root, CERTIFICATES_INSIDE));
}
