// Debian and Ubuntu: installs system packages with apt, and downloads single packages of Debian 13 into the project's
// build folder. Downloads use a separate apt state, so that the system's package sources do not change.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, statSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { SetupError, ask, clearLine, run } from './console.mjs';
import { findProgram } from './find.mjs';

const RELEASE = 'trixie'; // Debian 13
const KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg';
const NETWORK = "Is there a network connection to Debian's mirrors? Run this again: it continues where it stopped.";
const LISTS_ARE_FRESH_FOR = 24 * 3600e3;

export const KEYRING_PACKAGE = 'debian-archive-keyring';
export const hasApt = () => Boolean(findProgram('apt-get') && findProgram('dpkg-deb'));
export const hasDebianKeyring = () => existsSync(KEYRING);

// sudo remembers the password per terminal, so it must keep this program's terminal.
const ON_OUR_TERMINAL = { detached: false };

/** The command prefix that gives root: none, or sudo (which may ask for a password); null if neither works. */
async function asRoot() {
  if (process.getuid() === 0) return [];
  const sudo = findProgram('sudo');
  if (!sudo) return null;
  if ((await ask([sudo, '-n', 'true'], ON_OUR_TERMINAL)) !== null) return [sudo];
  if (!process.stdin.isTTY) return null;
  clearLine();
  return spawnSync(sudo, ['-v'], { stdio: 'inherit' }).status === 0 ? [sudo] : null;
}

/** Returns the names that apt can install now. */
async function installable(names) {
  const policy = (await ask(['apt-cache', 'policy', ...names], { env: { ...process.env, LC_ALL: 'C' } })) ?? '';
  const found = policy.matchAll(/^(\S+):\n(?: .*\n)*? {2}Candidate: (?!\(none\))/gm);
  return new Set([...found].map(([, name]) => name));
}

/** True if apt knows this package and this program may install it without a password. */
export const installsUnasked = async (name) => process.getuid?.() === 0 && hasApt() && (await installable([name])).has(name);

function listsAreFresh() {
  const lists = '/var/lib/apt/lists';
  if (!existsSync(lists) || !readdirSync(lists).some((name) => name.includes('_Packages'))) return false;
  const changed = Math.max(...[lists, join(lists, 'partial')].filter(existsSync).map((path) => statSync(path).mtimeMs));
  return Date.now() - changed < LISTS_ARE_FRESH_FOR;
}

function explainLock(error) {
  if (/Could not get lock/.test(error.message)) {
    error.advice = 'Another package manager is at work: wait for it to end, then run this again.';
  }
  throw error;
}

const INSTALL = ['apt-get', 'install', '-y', '--no-install-recommends'];

/** Returns a function that runs commands as root. Without root, it fails and prints the command to run by hand. */
export async function administrator(wishes) {
  const root = await asRoot();
  if (root) {
    const how = { advice: NETWORK, mayOutliveUs: true, ...(root.length > 0 && ON_OUR_TERMINAL) };
    return (...words) => run([...root, 'env', 'DEBIAN_FRONTEND=noninteractive', ...words], how).catch(explainLock);
  }
  const names = wishes.map(({ names }) => names[0]).join(' ');
  throw new SetupError(
    `System packages are missing, and installing them needs root or sudo: ${names}`,
    `Run this as root, then the set-up again:\n  apt-get update && ${INSTALL.join(' ')} ${names}`,
  );
}

/**
 * Installs system packages. For each wish, installs the first of its names that apt knows (some differ between Debian
 * and Ubuntu); skips an optional one if apt knows none of them.
 * @param {{ names: string[], optional?: boolean }[]} wishes
 * @param {Awaited<ReturnType<typeof administrator>>} asAdministrator
 * @returns {Promise<string[]>} the installed packages
 */
export async function installSystemPackages(wishes, asAdministrator) {
  const update = () => asAdministrator('apt-get', 'update');
  const choose = async () => {
    const known = await installable(wishes.flatMap(({ names }) => names));
    const chosen = wishes.map(({ names }) => names.find((name) => known.has(name)));
    const unknown = wishes.filter(({ optional }, i) => !chosen[i] && !optional);
    return { chosen: chosen.filter(Boolean), unknown: unknown.map(({ names }) => names.join(' or ')) };
  };

  let updated = !listsAreFresh();
  let said = updated ? await update() : '';
  let { chosen, unknown } = await choose();
  if (unknown.length && !updated) {
    said = await update();
    updated = true;
    ({ chosen, unknown } = await choose());
  }
  if (unknown.length) {
    const failures = said.match(/^W: Failed to fetch .*$/gm); // apt's exit code is 0 although these failed
    if (failures) throw new SetupError(`apt-get update\n${failures.slice(-5).join('\n')}`, NETWORK);
    throw new SetupError(
      `This machine's package sources do not have: ${unknown.join(', ')}`,
      'Debian 12 and later have all of them. Install these tools in another way (for WebAssembly: emsdk), then run this again.',
    );
  }
  const install = () => asAdministrator(...INSTALL, '-o', 'DPkg::Lock::Timeout=300', ...chosen);
  try {
    await install();
  } catch (error) {
    const wasCutOff = error.message.includes('dpkg --configure -a');
    if (wasCutOff) await asAdministrator('dpkg', '--configure', '-a');
    else if (updated) throw error;
    else await update(); // outdated lists may name versions that the mirror no longer has
    await install();
  }
  return chosen;
}

/** Returns the Debian mirror of this machine, if apt knows one. */
async function mirror() {
  const format = '$(REPO_URI) $(ORIGIN)';
  const targets = (await ask(['apt-get', 'indextargets', 'Created-By: Packages', '--format', format])) ?? '';
  const lines = targets.split('\n').map((line) => line.split(' '));
  const debian = lines.find(([uri, origin]) => /\/debian\/?$/.test(uri) && (!origin || origin === 'Debian'));
  return debian?.[0] ?? 'http://deb.debian.org/debian';
}

/**
 * Downloads packages of Debian 13; apt checks Debian's signatures.
 * @param {string[]} names
 * @param {string} folder absolute path of the folder for apt's state and the files
 * @param {string} components of the archive
 * @returns {Promise<Record<string, { file: string, version: string }>>}
 */
export async function downloadFromDebian13(names, folder, components = 'main') {
  if (!hasDebianKeyring()) {
    throw new SetupError(
      `${KEYRING} is missing, so packages of Debian 13 cannot be checked: ${names.join(', ')}`,
      'Install the package debian-archive-keyring, or install emsdk and Highway 1.2 by hand; then run this again.',
    );
  }
  const sources = join(folder, 'sources');
  const folders = [sources, join(folder, 'lists', 'partial'), join(folder, 'cache', 'archives', 'partial')];
  await Promise.all(folders.map((path) => mkdir(path, { recursive: true })));
  await writeFile(
    join(sources, 'debian13.sources'),
    `Types: deb\nURIs: ${await mirror()}\nSuites: ${RELEASE}\nComponents: ${components}\nSigned-By: ${KEYRING}\n`,
  );
  const own = {
    'Dir::Etc::SourceList': '/dev/null',
    'Dir::Etc::SourceParts': sources,
    'Dir::Etc::Preferences': '/dev/null',
    'Dir::Etc::PreferencesParts': '/dev/null',
    'Dir::State::Lists': join(folder, 'lists'),
    'Dir::State::Status': '/dev/null',
    'Dir::Cache': join(folder, 'cache'),
    'Acquire::Languages': 'none',
    'Acquire::Retries': '3',
    'APT::Update::Error-Mode': 'any', // otherwise apt ignores lists that it could not fetch
    ...(process.getuid() === 0 && { 'APT::Sandbox::User': 'root' }), // the sandbox's user may not read a checkout
  };
  const options = Object.entries(own).flatMap(([key, value]) => ['-o', `${key}=${value}`]);
  const how = { cwd: folder, advice: NETWORK, pidFile: join(folder, 'apt.pid') };
  await run(['apt-get', 'update', ...options], how);
  const download = ['apt-get', 'download', ...names, ...options];
  // Print a line per package: 'address' file size hash. Use another folder, because apt skips files that exist.
  const listing = await run([...download, '--print-uris'], { ...how, cwd: sources });
  await run(download, how);
  const files = [...listing.matchAll(/^'\S+' (\S+\.deb) /gm)].map(([, file]) => file);
  const described = names.map((name) => {
    const file = files.find((file) => file.startsWith(`${name}_`));
    return [name, { file: join(folder, file), version: decodeURIComponent(file.split('_')[1]) }];
  });
  return Object.fromEntries(described);
}

/**
 * Unpacks part of a package into a folder.
 * @param {string} file the .deb
 * @param {string} folder
 * @param {string[]} tarArguments the members to unpack, and how many path components to strip
 */
export async function unpack(file, folder, tarArguments = []) {
  await mkdir(folder, { recursive: true });
  // The exit code of a pipe is the exit code of its last command, so the first command creates a file when it succeeds.
  const mark = join(folder, '.unpacked');
  const script = 'deb=$1 mark=$2; shift 2; (dpkg-deb --fsys-tarfile "$deb" && : > "$mark") | tar -x --no-same-owner "$@"';
  await run(['sh', '-c', script, 'sh', file, mark, '-C', folder, ...tarArguments], { advice: 'Is the disk full?' });
  if (!existsSync(mark)) throw new SetupError(`${file} is damaged`, 'Delete it, then run this again.');
  await rm(mark);
}
