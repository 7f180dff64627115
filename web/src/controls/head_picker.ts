// A row of buttons with the badges of the heads: it chooses the head in view, or mutes heads.

import { headName, type NamedHeads } from '../attention/patterns.js';
import { differs } from '../base/store.js';
import { el, headBadge, refill } from '../dom/dom.js';
import { update, type App } from '../state/app.js';

/** `verb` begins the labels of buttons that do not choose a head, such as "mute ". `id` begins the ids of the buttons. */
export function createHeadPicker(
  onPress: (head: number) => void,
  { verb = '', id, ...attributes }: { verb?: string; id?: string; class?: string; 'aria-label'?: string } = {},
) {
  const element = el('span', { class: 'segments heads', role: 'group', 'aria-label': 'Head', ...attributes });
  let buttons: readonly HTMLElement[] = [];
  const isNew = differs();
  return {
    element,
    /** Shows these heads. `isPressed` tells whose buttons are pressed. */
    show(named: NamedHeads, muted: readonly number[], isPressed: (head: number) => boolean): void {
      if (isNew([named.heads, named.given?.names, muted])) {
        buttons = named.heads.map((pattern, head) => {
          const isMuted = muted.includes(head);
          const label = `${verb}head ${head + 1}, ${headName(named, head)}${isMuted && !verb ? ', muted' : ''}`;
          const attributes = { id: id && `${id}${head + 1}`, 'aria-label': label, title: label, onclick: () => onPress(head) };
          return el('button', attributes, headBadge(head + 1, pattern, isMuted));
        });
        refill(element, ...buttons);
      }
      buttons.forEach((button, head) => button.setAttribute('aria-pressed', String(isPressed(head))));
    },
  };
}

export function toggleMuted(app: App, head: number): void {
  const { muted } = app.state.get();
  const next = muted.includes(head) ? muted.filter((other) => other !== head) : [...muted, head];
  update(app, { muted: next.sort((a, b) => a - b) });
}
