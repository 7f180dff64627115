// Says why a script, a worker or a WebAssembly file of this page did not arrive.

import type { Failure } from './protocol.js';

/** True if a worker lacks a file of this page; the visitor's own files have other names. */
export const lacksFile = ({ code, argument = '' }: Failure): boolean =>
  code === 'E_LOAD' && ['worker', 'wasm', 'words', 'tokenizer'].includes(argument);

/** A sentence for the visitor. Asks the server whether it has another build of the page now. */
export async function whyMissing(): Promise<string> {
  try {
    // The copy for use without a network has the page under its plain address.
    const answer = await fetch('./?now', { cache: 'no-store' });
    const page = await answer.text();
    const scripts = [...document.scripts].filter(({ src }) => src.includes('/assets/'));
    if (answer.ok && !scripts.every(({ src }) => page.includes(src.slice(src.lastIndexOf('/'))))) {
      return 'This page was updated. Reload it: your choices are in its address.';
    }
    return 'A file of this page did not arrive. It is missing on the server, or an ad blocker or a firewall holds it back.';
  } catch {
    return 'A file of this page could not be fetched. Is there a network?';
  }
}
