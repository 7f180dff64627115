// `npm run try-bare -- bookworm trixie`: runs both commands of the README in a new Debian that has only its base
// packages and Node.js. It tests the set-up, and needs root and debootstrap.
//
//   --only start|test   one of the two commands
//   --keep              does not delete build/bare/<suite>
//
// Tests the last commit.
import { spawn } from 'node:child_process';
import { chmod, mkdir, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { checkRootCanBeMade, commandIn, makeBareRoot } from './bare_root.mjs';
import { ROOT } from './build.mjs';
import { SetupError, UsageError, run, say, step } from './console.mjs';
import { npmProgram, runAsProgram } from './program.mjs';

const USAGE = 'Usage: npm run try-bare -- bookworm|trixie … [--only start|test] [--keep]';
const SUITES = {
  bookworm: bringNodeFromNpm, // Debian 12 has Node.js 18
  trixie: (root) => inside(root, 'apt-get update && apt-get install -y --no-install-recommends nodejs npm'),
};
const PROJECT = '/root/multihead';
const LIMIT = { start: 30 * 60e3, test: 150 * 60e3 };

const inside = (root, script) => run(commandIn(root, script));

/** Installs Node.js 22 and npm from npm's registry. */
async function bringNodeFromNpm(root) {
  const folder = join(root, 'tmp');
  const packages = [`node-linux-${process.arch}@22`, 'npm@10'];
  const said = await run([...npmProgram(), 'pack', '--silent', '--pack-destination', folder, ...packages]);
  const [node, npm] = said.trim().split('\n').slice(-2);
  const library = join(root, 'usr/local/lib/node_modules/npm');
  await mkdir(library, { recursive: true });
  const unpack = (name, to, ...members) => run(['tar', '-xzf', join(folder, name), '-C', to, '--strip-components=1', '--no-same-owner', ...members]);
  await unpack(node, join(root, 'usr/local'), 'package/bin');
  await unpack(npm, library);
  await symlink('../lib/node_modules/npm/bin/npm-cli.js', join(root, 'usr/local/bin/npm'));
  await chmod(join(library, 'bin/npm-cli.js'), 0o755);
}

async function makeRoot(suite, root) {
  await step(`${suite}: base system`, async (tell) => {
    await makeBareRoot(suite, root);
    tell(root);
  });
  await step(`${suite}: Node.js`, async (tell) => {
    await SUITES[suite](root);
    tell((await inside(root, 'echo "$(node --version), npm $(npm --version)"')).trim());
  });
  await run(['git', 'clone', '--quiet', '--depth', '1', `file://${ROOT}`, join(root, PROJECT)]);
}

/** Runs `npm start` until its page can be fetched; returns the seconds that it reports. */
function tryStart(root) {
  return new Promise((resolve, reject) => {
    const [program, ...words] = commandIn(root, `cd ${PROJECT} && PORT=0 npm start`);
    const child = spawn(program, words, { stdio: ['ignore', 'pipe', 'pipe'] });
    let said = '';
    const end = (error) => {
      clearTimeout(timer);
      child.kill('SIGKILL'); // this ends all processes in its namespaces
      if (error) reject(new SetupError(`${error}\n${said.split('\n').slice(-20).join('\n')}`));
      else resolve();
    };
    const timer = setTimeout(() => end('npm start served no page in time'), LIMIT.start);
    child.on('error', (error) => end(error.message));
    child.on('close', (code) => end(`npm start ended with ${code}`));
    const listen = async (text) => {
      said += text;
      const url = /^Open (\S+) in a browser/m.exec(said)?.[1];
      if (!url || child.fetched) return;
      child.fetched = true;
      try {
        const answer = await fetch(url);
        const page = await answer.text();
        end(answer.ok && page.includes('<title>') ? null : `${url} gave ${answer.status}: ${page.slice(0, 200)}`);
      } catch (error) {
        end(`${url}: ${error.message}`);
      }
    };
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', listen);
  });
}

/** Runs `npm test`; returns its last line. */
async function tryTest(root, log) {
  try {
    const said = await run(commandIn(root, `cd ${PROJECT} && npm test`), { timeout: LIMIT.test });
    await writeFile(log, said);
    return said.trimEnd().split('\n').at(-1);
  } catch (error) {
    await writeFile(log, error.output ?? error.message);
    throw new SetupError(`${error.message}\n\nAll of it: ${log}`);
  }
}

async function trySuite(suite, { only, keep }) {
  const root = join(ROOT, 'build', 'bare', suite);
  try {
    await makeRoot(suite, root);
    if (only !== 'test') await step(`${suite}: npm start`, (tell) => tryStart(root).then(() => tell('served its page')));
    if (only !== 'start') {
      await step(`${suite}: npm test`, async (tell) => tell(await tryTest(root, `${root}.log`)));
    }
  } finally {
    if (!keep) await rm(root, { recursive: true, force: true });
  }
}

runAsProgram(import.meta.url, async (...args) => {
  const { values, positionals } = parseArgs({
    args,
    options: { only: { type: 'string' }, keep: { type: 'boolean' } },
    allowPositionals: true,
  });
  const known = positionals.length > 0 && positionals.every((suite) => Object.hasOwn(SUITES, suite));
  if (!known || !['start', 'test', undefined].includes(values.only)) throw new UsageError(USAGE);
  checkRootCanBeMade();
  for (const suite of positionals) {
    try {
      await trySuite(suite, values);
    } catch (error) {
      if (!(error instanceof SetupError)) throw error;
      say(`\n${suite}: ${error.message}\n`);
      process.exitCode = 1;
    }
  }
});
