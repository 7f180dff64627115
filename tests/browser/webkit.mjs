// WebKit, the engine of Safari, as Debian packages it for GTK: MiniBrowser, driven by WebKitWebDriver, on a virtual screen.

import { execFile, spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { command, openSession } from './webdriver.mjs';

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

/** The programs that run; they end with this process at the latest. */
const running = new Set();
process.once('exit', () => running.forEach((child) => child.kill()));
for (const signal of ['SIGHUP', 'SIGINT', 'SIGTERM']) process.once(signal, () => process.exit(1));

function start(program, given, options) {
  const child = spawn(program, given, options);
  running.add(child);
  const ended = new Promise((done) => child.once('exit', done));
  const failed = new Promise((_, fail) => child.once('error', fail));
  return {
    child,
    failed,
    async close() {
      child.kill();
      await ended;
      running.delete(child);
    },
  };
}

/** Starts a virtual screen and returns its name, such as ":99". */
async function startScreen(path) {
  const screen = start(path, ['-displayfd', '3', '-screen', '0', '1600x1600x24', '-nolisten', 'tcp'], {
    stdio: ['ignore', 'ignore', 'ignore', 'pipe'],
  });
  const number = new Promise((done) => screen.child.stdio[3].once('data', (data) => done(String(data).trim())));
  return { ...screen, name: `:${await Promise.race([number, screen.failed])}` };
}

/** Starts a driver, which has one session at a time; `close` ends it with its browser. */
async function startDriver(path, env) {
  const port = await freePort();
  const driver = start(path, [`--port=${port}`], { stdio: 'ignore', env });
  const address = `http://127.0.0.1:${port}`;
  for (let ready = false; !ready;) {
    const answer = command(address, 'GET', '/status').then(
      () => true,
      () => false,
    );
    ready = await Promise.race([answer, driver.failed]);
    if (!ready) await new Promise((done) => setTimeout(done, 20));
  }
  return { address, close: driver.close };
}

/**
 * @param {{ path: string, browser: string, screen: string }} found paths of WebKitWebDriver, MiniBrowser and Xvfb
 * @returns a browser with the methods of Puppeteer that the tests use
 */
export async function launchWebKit({ path, browser, screen: xvfb }) {
  const [folder, screen] = await Promise.all([mkdtemp(join(tmpdir(), 'multihead-webkit-')), startScreen(xvfb)]);
  const home = Object.fromEntries(['CONFIG', 'CACHE', 'DATA'].map((name) => [`XDG_${name}_HOME`, join(folder, name)]));
  const env = { ...process.env, ...home, DISPLAY: screen.name, GDK_BACKEND: 'x11', NO_AT_BRIDGE: '1' };
  const options = { binary: browser, args: ['--automation', '--javascript-can-open-windows-automatically=true'] };
  const contexts = new Set();

  /** Each context is a browser of its own. */
  async function createBrowserContext() {
    const driver = await startDriver(path, env);
    let page;
    const context = {
      newPage: async () => (page = await openSession(driver.address, { 'webkitgtk:browserOptions': options })),
      close: async () => {
        contexts.delete(context);
        await page?.close();
        await driver.close();
      },
    };
    contexts.add(context);
    return context;
  }

  return {
    createBrowserContext,
    version: async () => (await promisify(execFile)(browser, ['--version'], { env })).stdout.trim(),
    async close() {
      await Promise.all([...contexts].map((context) => context.close()));
      await screen.close();
      await rm(folder, { recursive: true, force: true, maxRetries: 20 });
    },
  };
}
