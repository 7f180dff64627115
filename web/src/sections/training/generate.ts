// "Generate": the trained model continues a pattern. The model of the four jobs has none.

import { el, panel } from '../../dom/dom.js';
import { update, type App } from '../../state/app.js';
import { whyMissing } from '../../workers/missing_file.js';

export function generateSection(app: App): HTMLElement {
  const train = el('button', { class: 'primary', id: 'generate-train' }, 'Train induction');
  const why = 'The four-jobs model only looks back and never says what comes next. The induction model does.';
  const nothing = el('div', { class: 'no-generation' }, el('p', {}, why), train);
  const problem = el('p', { class: 'hint', role: 'status' });
  const lead = 'A trained model continues a pattern, one token at a time.';
  const section = panel('generate', { title: 'Generate', lead }, nothing, problem);
  let loading: Promise<void> | undefined;

  async function load(): Promise<void> {
    const { generation } = await import('./generation.js');
    section.append(generation(app));
    problem.textContent = '';
  }

  /** Fetches the script of this section, which a visitor of the four jobs does not need. */
  const loaded = (): Promise<void> =>
    (loading ??= load().catch(async () => {
      loading = undefined;
      problem.textContent = await whyMissing();
    }));

  train.addEventListener('click', async () => {
    await loaded();
    if (!loading) return;
    update(app, { train: 'induction', trainHeads: null, layers: null });
    void app.training.train();
    document.getElementById('generate-go')?.focus({ preventScroll: true });
  });
  app.state.watch((state) => {
    section.classList.toggle('is-empty', state.train !== 'induction');
    if (state.train === 'induction') void loaded();
  });
  return section;
}
