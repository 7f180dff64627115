// A new project for the rows of rows.mjs: a folder into which npm installs the packed package and the row's tools. Its
// programs run there, and its pages run in every browser found.
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { serve } from '../../../web/serve.mjs';
import { SetupError, run, start, stopCommand } from '../console.mjs';
import { findProgram } from '../find.mjs';
import { npmProgram } from '../program.mjs';

/** The text that a page, a worker or a program gives when its call returned the right result. */
const SUCCESS = /^ok (relaxed|simd128)$/;
const PATIENCE = 60e3;

/** The strictest Content-Security-Policy under which the package needs nothing of its user: without Trusted Types. */
const usualPolicy = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'";

/** The Content-Security-Policy that lets multihead/inline, and any bundle of it, start workers. */
export const blobWorkers = usualPolicy.replace('worker-src', 'worker-src blob:');

export class Project {
  /** @param {{ folder: string, tarball: string, tools: string[], browsers: { name: string, browser: object }[] }} parts */
  constructor({ folder, tarball, tools, browsers }) {
    Object.assign(this, { folder, tarball, tools, browsers });
    this.env = { ...process.env, CI: '1', NO_COLOR: '1', NEXT_TELEMETRY_DISABLED: '1' };
    delete this.env.NODE_ENV; // Next.js and Vite would read it as a setting
    /** Results that were seen, for example "chromium relaxed". */
    this.seen = new Set();
  }

  at(...path) {
    return join(this.folder, ...path);
  }

  async install() {
    await rm(this.folder, { recursive: true, force: true });
    await this.write({ 'package.json': JSON.stringify({ private: true, type: 'module' }) });
    // Allow install scripts: bun, deno and esbuild need them to get their programs.
    const words = ['install', '--no-audit', '--no-fund', '--loglevel=error', '--prefer-offline'];
    await this.run(['npm', ...words, this.tarball, ...this.tools], { mayOutliveUs: true });
  }

  async write(files) {
    for (const [name, text] of Object.entries(files)) {
      await mkdir(dirname(this.at(name)), { recursive: true });
      await writeFile(this.at(name), text);
    }
  }

  /** Runs a command in the project. A name without a slash is a program of its packages, npm or Node. */
  async run(command, options = {}) {
    return run(this.#located(command), { cwd: this.folder, env: this.env, ...options });
  }

  #located([program, ...words]) {
    if (program === 'npm') return [...npmProgram(), ...words];
    if (program === 'node') return [process.execPath, ...words];
    const path = this.at(program.includes('/') ? program : join('node_modules', '.bin', program));
    return [findProgram(path) ?? path, ...words];
  }

  /** Fails unless the command's last line reports the right result. */
  async expectOutput(command, who = 'node', options = {}) {
    const said = (await this.run(command, options)).trim().split('\n').at(-1);
    this.#expect(said, who, command.join(' '));
  }

  async extendManifest(more) {
    const manifest = JSON.parse(await readFile(this.at('package.json'), 'utf8'));
    await this.write({ 'package.json': JSON.stringify({ ...manifest, ...more }) });
  }

  /** Fails unless the page reports the right result in every browser. `site`: a folder to serve. */
  async expectPage({ site, url, path = '', policy }) {
    const server = site && (await serve({ root: this.at(site), port: 0 }));
    if (server) servePlainly(server, policy);
    try {
      for (const { name, browser } of this.browsers) {
        // Firefox 153 never starts 3 of 100 workers here, in a page with nothing else, too.
        const look = () => titleOf(browser, (url ?? server.url) + path);
        const said = await look();
        this.#expect(said.startsWith('nothing') ? await look() : said, name, `${site ?? url}${path}`);
      }
    } finally {
      await server?.close();
    }
  }

  /** Starts the project's own server on a free port, waits until it answers, and calls `use` with its address. */
  async withServer(command, use, { env: more, ...options } = {}) {
    const port = await freePort();
    const own = this.#located(command.map((word) => word.replace('PORT', port)));
    const env = { ...this.env, PORT: String(port), HOSTNAME: '127.0.0.1', ...more };
    const child = start(own, { cwd: this.folder, env, stdio: ['ignore', 'pipe', 'pipe'], ...options });
    let said = '';
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text) => (said += text));
    try {
      const url = `http://127.0.0.1:${port}/`;
      await answering(url);
      await use(url);
    } catch (error) {
      throw new SetupError(`${error.message}\n${said.split('\n').slice(-20).join('\n')}`);
    } finally {
      const ended = new Promise((resolve) => child.once('close', resolve));
      if (child.exitCode === null) stopCommand(child);
      await ended;
    }
  }

  /** Fails unless the HTML that the server sends reports the right result. */
  async expectHtml(url, who = 'server') {
    const html = await (await fetch(url)).text();
    this.#expect(/<p>([^<]*)<\/p>/.exec(html)?.[1] ?? html.slice(0, 300), who, url);
  }

  /** Copies a part of the project to a folder without the rest of the project, and calls `use` with that folder. */
  async moved(part, use) {
    const elsewhere = await mkdtemp(join(tmpdir(), 'multihead-moved-'));
    try {
      await cp(this.at(part), elsewhere, { recursive: true, verbatimSymlinks: true });
      await use(elsewhere);
    } finally {
      await rm(elsewhere, { recursive: true, force: true });
    }
  }

  #expect(said, who, what) {
    const simd = SUCCESS.exec(said)?.[1];
    if (simd === undefined) throw new SetupError(`${what} in ${who} said: ${said}`);
    this.seen.add(`${who} ${simd}`);
  }
}

/**
 * Makes a server of web/serve.mjs send uncompressed files, because compression takes longer than the page, and another
 * Content-Security-Policy; null means no policy.
 */
export function servePlainly({ server }, policy = usualPolicy) {
  server.prependListener('request', (request, response) => {
    delete request.headers['accept-encoding'];
    const { writeHead } = response;
    response.writeHead = (status, { 'Content-Security-Policy': _, ...headers }) =>
      writeHead.call(response, status, { ...headers, ...(policy && { 'Content-Security-Policy': policy }) });
  });
}

/**
 * Returns the title that the page's script sets. Polls, because Firefox treats Puppeteer's waitForFunction() as an
 * eval.
 */
async function titleOf(browser, url) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  const complaints = [];
  page.on('console', (message) => message.type() === 'error' && complaints.push(message.text()));
  page.on('pageerror', (error) => complaints.push(String(error)));
  try {
    await page.goto(url);
    const end = performance.now() + PATIENCE / 2;
    for (;;) {
      const title = await page.title().catch(() => ''); // fails while the page reloads
      if (/^(ok|failed)/.test(title)) return title;
      if (performance.now() > end) return `nothing; its console: ${complaints.join('; ')}`;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  } finally {
    await context.close();
  }
}

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

async function answering(url) {
  const end = performance.now() + PATIENCE;
  for (;;) {
    const answer = await fetch(url).catch(() => null);
    await answer?.arrayBuffer().catch(() => null);
    if (answer) return;
    if (performance.now() > end) throw new SetupError(`${url} does not answer`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
