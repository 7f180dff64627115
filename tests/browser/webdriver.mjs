// A page in a browser that speaks the WebDriver protocol (https://www.w3.org/TR/webdriver2/). The page has the methods of
// Puppeteer that the essential tests use. Puppeteer itself speaks the protocols of Chromium and Firefox only.

/**
 * Milliseconds after which a script, or the loading of a page, counts as hung. The slowest takes 30 s on a machine that
 * compiles on every core.
 */
const LONGEST = 60_000;
const ELEMENT = 'element-6066-11e4-a52e-4f735466cecf';
/** The code points that the protocol gives to keys without a character. */
const KEYS = {
  Backspace: '\uE003',
  Tab: '\uE004',
  Enter: '\uE007',
  Shift: '\uE008',
  Control: '\uE009',
  Escape: '\uE00C',
  End: '\uE010',
  Home: '\uE011',
  ArrowLeft: '\uE012',
  ArrowUp: '\uE013',
  ArrowRight: '\uE014',
  ArrowDown: '\uE015',
};

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Makes one call of the protocol; throws the error that the driver reports. */
export async function command(address, method, path, body) {
  const signal = AbortSignal.timeout(1.25 * LONGEST);
  const answer = await fetch(address + path, { method, body: body && JSON.stringify(body), signal }).catch((error) => {
    if (error.name === 'TimeoutError') error.browserBug = "WebKitGTK's driver gives no answer to a command, in one of 20 runs of all tests";
    throw error;
  });
  const { value } = await answer.json();
  if (!answer.ok) throw new Error(`${value.error}: ${value.message}`);
  return value;
}

/** Opens a page in a browser of its own, with storage of its own. */
export async function openSession(driver, capabilities) {
  const { sessionId } = await command(driver, 'POST', '/session', { capabilities: { alwaysMatch: capabilities } });
  const session = `${driver}/session/${sessionId}`;
  await command(session, 'POST', '/timeouts', { script: LONGEST, pageLoad: LONGEST });
  return new Page(session, await command(session, 'GET', '/window'));
}

/** Runs in the page: calls the function with the arguments, waits for its result, and takes the complaints until then. */
const calling = (source) => `
  const values = [...arguments];
  const done = values.pop();
  const report = (result) => done({ ...result, complaints: window.complaintsForTest?.splice(0) ?? [] });
  (async () => (${source})(...values))().then((value) => report({ value }), (error) => report({ error: String(error) }));`;

/**
 * Opens a window with an address of the origin of this page, and collects the errors and warnings of the new window. An empty
 * window and its first document of the same origin share one window object, so the listeners see the page from its start.
 * This function runs in the browser.
 */
function openListening(address, { width, height }) {
  const opened = window.open(address, '', `popup,width=${width},height=${height}`);
  const complaints = (opened.complaintsForTest = []);
  const note = (event, text) => complaints.push({ event, text: String(text) });
  opened.addEventListener('unhandledrejection', ({ reason }) => note('pageerror', reason));
  opened.addEventListener('securitypolicyviolation', ({ violatedDirective, blockedURI }) =>
    note('pageerror', `${violatedDirective} forbids ${blockedURI}`),
  );
  // Captures, because the errors of elements that load something do not rise.
  const onError = ({ message, target }) => {
    // The observers go on in the next frame. Chromium and Firefox report this as no error.
    if (!message?.startsWith('ResizeObserver loop')) note('pageerror', message ?? `${target.src || target.href} does not load`);
  };
  opened.addEventListener('error', onError, { capture: true });
  for (const level of ['error', 'warn']) {
    const real = opened.console[level];
    opened.console[level] = (...values) => {
      note(level, values.join(' '));
      real.apply(opened.console, values);
    };
  }
}

/** Source of a function that calls `source` with the element, or all elements, that a selector matches. */
const withElement = (source) => `(selector, ...rest) => {
  const element = document.querySelector(selector);
  if (!element) throw new Error('no element matches ' + selector);
  return (${source})(element, ...rest);
}`;
const withElements = (source) => `(selector, ...rest) => (${source})([...document.querySelectorAll(selector)], ...rest)`;

class Page {
  #session;
  /** The handle of the first window. It opens the windows that show the page. */
  #first;
  #size = { width: 1280, height: 900 };
  #isLoaded = false;
  /** The handle of the window that shows the page. */
  #window;
  #listeners = [];
  /** The keys that are held down, in which a key pressed meanwhile has its meaning. */
  #held = [];
  keyboard = {
    down: async (key) => void this.#held.push(key),
    up: async (key) => void (this.#held = this.#held.filter((each) => each !== key)),
    press: (key) => this.#press([...this.#held, key]),
    type: async (text) => {
      for (const letter of text) await this.#press([letter]);
    },
  };
  mouse = {
    move: (x, y) => this.#act({ type: 'pointer', id: 'mouse', actions: [{ type: 'pointerMove', duration: 0, x: Math.round(x), y: Math.round(y) }] }),
  };

  constructor(session, first) {
    this.#session = session;
    this.#first = first;
  }

  #command = (method, path, body) => command(this.#session, method, path, body);
  #act = (source) => this.#command('POST', '/actions', { actions: [source] });

  #press(keys) {
    const values = keys.map((key) => KEYS[key] ?? key);
    const actions = [...values.map((value) => ({ type: 'keyDown', value })), ...values.toReversed().map((value) => ({ type: 'keyUp', value }))];
    return this.#act({ type: 'key', id: 'keyboard', actions });
  }

  on(event, listener) {
    this.#listeners.push({ event, listener });
  }

  #report({ event, text }) {
    for (const each of this.#listeners) {
      if (event === 'pageerror' && each.event === event) each.listener(text);
      if (event !== 'pageerror' && each.event === 'console') each.listener({ type: () => event, text: () => text, location: () => ({}) });
    }
  }

  setDefaultTimeout() {}

  /** Sets the size of the page. Only a window that opens with its size can have the width of a phone. */
  async setViewport({ width, height }) {
    this.#size = { width, height };
    if (!this.#isLoaded) return this.#open('about:blank');
    const inner = await this.evaluate(() => ({ width: innerWidth, height: innerHeight }));
    const { width: w, height: h } = await this.#command('GET', '/window/rect');
    return this.#command('POST', '/window/rect', { width: w + width - inner.width, height: h + height - inner.height });
  }

  async goto(url) {
    // Without a second window the browser would start another process for a page with such a policy, and wait for the last one.
    if (!this.#window) await this.#open('about:blank');
    await this.#command('POST', '/window', { handle: this.#first });
    // This page has the origin of the next one, and its policy about windows that open each other.
    await this.#command('POST', '/url', { url: String(new URL('opener', url)) });
    await this.#open(url);
    while (!(await this.evaluate(() => document.readyState === 'complete' && location.href !== 'about:blank'))) await pause(20);
    this.#isLoaded = true;
  }

  /** Opens a window of the page's size; closes the page's last one. */
  async #open(url) {
    await this.#command('POST', '/window', { handle: this.#first });
    await this.#call(String(openListening), url, this.#size);
    const handles = await this.#command('GET', '/window/handles');
    const opened = handles.find((handle) => handle !== this.#first && handle !== this.#window);
    if (this.#window) {
      await this.#command('POST', '/window', { handle: this.#window });
      await this.#command('DELETE', '/window');
    }
    this.#window = opened;
    await this.#command('POST', '/window', { handle: opened });
  }

  title = () => this.#command('GET', '/title');

  /** Calls a function in the page, given by its source. */
  async #call(source, ...values) {
    const { value, error, complaints } = await this.#command('POST', '/execute/async', { script: calling(source), args: values });
    for (const complaint of complaints) this.#report(complaint);
    if (error !== undefined) throw new Error(error);
    return value;
  }

  /** A text is an expression. */
  evaluate = (what, ...values) => this.#call(typeof what === 'function' ? String(what) : `() => (${what.trim().replace(/;$/, '')}\n)`, ...values);
  $eval = (selector, run, ...values) => this.#call(withElement(run), selector, ...values);
  $$eval = (selector, run, ...values) => this.#call(withElements(run), selector, ...values);
  focus = (selector) => this.$eval(selector, (element) => element.focus());

  /** Chooses an option of a list, and sends the events of a choice. */
  select = (selector, value) =>
    this.$eval(
      selector,
      (list, chosen) => {
        list.value = chosen;
        for (const name of ['input', 'change']) list.dispatchEvent(new Event(name, { bubbles: true }));
      },
      value,
    );

  async $$(selector) {
    const found = await this.#command('POST', '/elements', { using: 'css selector', value: selector });
    return found.map((reference) => this.#element(reference));
  }

  async $(selector) {
    return (await this.$$(selector))[0] ?? null;
  }

  async #only(selector) {
    const element = await this.$(selector);
    if (!element) throw new Error(`no element matches ${selector}`);
    return element;
  }

  click = async (selector) => (await this.#only(selector)).click();
  type = async (selector, text) => (await this.#only(selector)).type(text);

  #element(reference) {
    const path = `/element/${reference[ELEMENT]}`;
    const send = (text) => this.#command('POST', `${path}/value`, { text });
    return {
      // Puppeteer moves the element to the middle of the window; the protocol to its edge, which a bar may cover.
      click: async () => {
        await this.evaluate((element) => element.scrollIntoView({ block: 'center', behavior: 'instant' }), reference);
        await this.#command('POST', `${path}/click`, {});
      },
      hover: () => {
        const actions = [{ type: 'pointerMove', duration: 0, origin: reference, x: 0, y: 0 }];
        return this.#act({ type: 'pointer', id: 'mouse', actions });
      },
      type: send,
      uploadFile: (...files) => send(files.join('\n')),
    };
  }

  /** Reports the complaints since the last call. */
  takeComplaints = () => this.evaluate(() => undefined);
  /** Ends the browser. */
  close = () => this.#command('DELETE', '');
}
