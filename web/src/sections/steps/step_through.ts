// "Step through": the ten steps from x to the output. One number, the thread, goes through all of them. Everything in the panel
// keeps its place and height from step to step, so that the eye can stay where it is.

import { mostColumns, type ForwardResult, type Trace } from '../../attention/messages.js';
import { headName as nameOf } from '../../attention/patterns.js';
import { formatNumber, formatShape } from '../../base/format.js';
import { differs } from '../../base/store.js';
import { createHeadPicker } from '../../controls/head_picker.js';
import { choiceOf, createViewSwitch } from '../../controls/choice.js';
import { el, pairOf, panel, rich, setText, word, type Child } from '../../dom/dom.js';
import { isOnScreen, say } from '../../dom/live_region.js';
import { reducedMotion } from '../../dom/reduced_motion.js';
import { whenSeen } from '../../dom/when_seen.js';
import { cellText } from '../../maps/cell_text.js';
import { largestOf, type MatrixView } from '../../maps/heat_map.js';
import { createLegend } from '../../maps/legend.js';
import { saveButtons, showMatrix } from '../../maps/map_frame.js';
import { layoutOf } from '../../maps/map_layout.js';
import { createMap, type Cell } from '../../maps/matrix_map.js';
import { isPerHead, viewOf } from '../../maps/step_view.js';
import { chosen, inView, isCurrent, update, whenViewed, withNumbers, withResult, type App } from '../../state/app.js';
import type { PageState, StepId } from '../../state/page_state.js';
import { bendControls, resetButton } from '../bend/bend_controls.js';
import { effect } from '../bend/bend.js';
import { createCellExplanation } from './cell_explanation.js';
import { carries, explain } from './explain.js';
import { flowMap, stepButtons } from './flow_map.js';
import { formula, type FormulaName } from './formulas.js';
import { stepOf, steps, type Part, type Step } from './steps.js';
import { cellOf, goesOn, numberAt, threadOf } from './thread.js';

const maxCell = 38;
/** Height of a table with its border, in pixels. */
const tableHeight = 382;

export function stepSection(app: App): HTMLElement {
  const parts = [flowMap(app), stepDetail(app), ending(app)];
  return withResult(app, panel('steps', { title: 'One number, ten steps', tools: stepButtons(app) }, ...parts));
}

/** Puts the contents of all steps in one place: only the current one is visible, and the tallest sets the height. */
function stack(name: string) {
  const layers = new Map<StepId, HTMLElement>(steps.map(({ id }) => [id, el('div', { class: 'layer' })]));
  const element = el('div', { class: `stack ${name}` }, ...layers.values());
  return {
    element,
    layer: (id: StepId): HTMLElement => layers.get(id)!,
    select(now: StepId): void {
      for (const [id, layer] of layers) layer.classList.toggle('is-current', id === now);
    },
  };
}

/** A link to the scene of the story that shows this step alone. */
const sceneOf = ({ scene }: Step): Child[] => (scene ? [' ', el('a', { href: `?scene=${scene}` }, 'Try it as a scene.')] : []);

/** The formula of a part, for the current mask and divisor. */
function formulaOf({ formula: name }: Part, { causal, bend, given }: ForwardResult): FormulaName {
  if (name === 'x' && given) return 'given';
  if (name === 'mask' && !causal && bend.window < 0) return 'unmasked';
  if (name === 'scale' && bend.divisor === 'model') return 'scaleModel';
  return name === 'scale' && bend.divisor === 'none' ? 'scaleNone' : name;
}

function stepDetail(app: App): HTMLElement {
  /** The column of a matrix of features that is pointed at, or that was clicked; such a matrix has no keys. */
  let pointedColumn: number | undefined;
  let clicked: Cell | undefined;
  let explained: Cell | undefined;
  const texts = stack('step-texts');
  const formulas = stack('formula');
  const shape = el('p', { class: 'hint shape-line' });
  const letters = (['q', 'k', 'v'] as const).map((value) => ({ value, label: value, id: `part-${value}` }));
  const parts = choiceOf(app, 'part', letters, { role: 'group', 'aria-label': 'Matrix' });
  const heads = createHeadPicker((head) => update(app, { head }), { id: 'show-head-', class: 'segments heads wide' });
  const views = createViewSwitch(app, 'stepView', 'Show the matrix as');
  const picture = el('div', { class: 'slim step-picture' });
  const explanation = createCellExplanation();
  const knobs = stack('step-knobs');
  for (const [id, ...controls] of bendControls(app)) knobs.layer(id).append(...controls);
  const body = el('div', { class: 'step-body' }, picture, explanation.element, knobs.element);
  const legends = { weights: createLegend('weights'), signed: createLegend('signed') };
  const map = createMap({ maxCell, sizer: picture, onPoint: pointAt, onChoose: choose });
  const saves = saveButtons('this matrix', () => {
    const result = app.result.get();
    if (!result) return null;
    const { trace } = chosenPart(shownStep());
    const head = isPerHead(result.trace[trace]) ? ` of head ${chosen(app, result).head + 1}` : '';
    return { view: shownView(result), title: `${trace}${head}` };
  });
  const detail = el(
    'div',
    { class: 'column step-detail', role: 'tabpanel', id: 'step-detail' },
    texts.element,
    el('div', { class: 'well row apart formula-row' }, formulas.element, shape),
    el('div', { class: 'row step-controls' }, heads.element, parts, views),
    body,
    el(
      'div',
      { class: 'row apart map-under' },
      el('div', { class: 'stack' }, legends.weights.element, legends.signed.element),
      el('span', { class: 'row' }, resetButton(app), saves),
    ),
  );
  formulas.element.setAttribute('role', 'group');
  formulas.element.setAttribute('aria-label', 'Formula');

  const chosenPart = (step: Step): Part => step.parts.find(({ label }) => label === app.state.get().part) ?? step.parts[0]!;
  const shownStep = (): Step => stepOf(app.state.get().step);

  function shownView(result: ForwardResult): MatrixView {
    return viewOf(result, chosenPart(shownStep()).trace, chosen(app, result).head);
  }

  const show = withNumbers(app, (result) => {
    const { head } = chosen(app, result);
    const step = shownStep();
    const { trace: name } = chosenPart(step);
    detail.setAttribute('aria-labelledby', `step-${step.id}`);
    texts.select(step.id);
    formulas.select(step.id);
    knobs.select(step.id);
    shape.replaceChildren(
      el('strong', { class: 'number' }, formatShape(result.trace[name].shape)),
      ' ',
      ...rich(step.axes),
      result.trace[name].shape.at(-1)! > mostColumns ? `; the first ${mostColumns} are shown` : '',
    );
    showControls(result, step, head);
    drawMatrix(result, name, head);
    fitFormulas();
    explainCell();
  });

  /** Writes the texts and formulas of all steps. They depend on the switches, not on the step shown. */
  function write(result: ForwardResult): void {
    steps.forEach((step, index) => {
      texts
        .layer(step.id)
        .replaceChildren(
          el('h3', {}, `${index + 1}. ${step.title}`),
          el('p', { class: 'lead step-text' }, ...rich(step.text(result)), ...sceneOf(step)),
        );
      formulas.layer(step.id).replaceChildren(formula(formulaOf(chosenPart(step), result)));
    });
  }

  /** Makes a formula reachable by keyboard if it is wider than its box and therefore scrolls. */
  function fitFormulas(): void {
    const { element } = formulas;
    if (element.scrollWidth > element.clientWidth) element.tabIndex = 0;
    else element.removeAttribute('tabindex');
  }

  function showControls(result: ForwardResult, step: Step, head: number): void {
    const part = chosenPart(step);
    parts.classList.toggle('is-idle', step.parts.length === 1);
    const { muted } = result.bend;
    heads.show(result, muted, (index) => index === head);
    const name = `${nameOf(result, head)}${muted.includes(head) ? ', muted' : ''}`;
    explanation.head.textContent = isPerHead(result.trace[part.trace]) ? name : 'all heads';
  }

  /** Gives the room that a small map leaves to the explanation of its cell. */
  function fixColumns(view: MatrixView): void {
    const whole = body.clientWidth;
    const { width } = layoutOf(view, whole, maxCell);
    const narrow = view.colLabels !== undefined && app.state.get().stepView === 'colors' && whole > 750 && width < whole / 2;
    body.style.gridTemplateColumns = narrow ? `${width}px minmax(0, 1fr)` : '';
  }

  /** Sets the height to the tallest matrix of all steps, so that the height does not change between steps. */
  function fixHeight(result: ForwardResult): void {
    const width = picture.clientWidth;
    if (width === 0) return;
    const heights = (['scores', 'q', 'qHeads'] as const).map((name) => layoutOf(viewOf(result, name, 0), width, maxCell).height);
    const table = app.state.get().stepView === 'numbers' ? tableHeight : 0;
    picture.style.minHeight = `${Math.max(table, ...heights)}px`;
  }

  function drawMatrix(result: ForwardResult, name: keyof Trace, head: number): void {
    const view = viewOf(result, name, head);
    const perHead = isPerHead(result.trace[name]);
    for (const [scale, legend] of Object.entries(legends)) {
      legend.element.classList.toggle('is-idle', scale !== view.scale);
    }
    legends[view.scale].show({ masked: view.hidden !== undefined, edited: view.edited !== undefined, muted: view.muted, limit: largestOf(view) });
    fixColumns(view);
    fixHeight(result);
    const label = `${name}${perHead ? ` of head ${head + 1}` : ''}, ${view.rows} by ${view.cols}`;
    const where = perHead ? `head ${head + 1}, ` : `${name}, `;
    const cellLabel = ({ row, col }: Cell): string => where + cellText(view, row, col);
    showMatrix(picture, map, { view, label, cellLabel }, app.state.get().stepView);
  }

  const isSquare = (): boolean => {
    const result = app.result.get();
    return result !== null && shownView(result).colLabels !== undefined;
  };

  function pointAt(cell: Cell | null): void {
    pointedColumn = cell && !isSquare() ? cell.col : undefined;
    app.pointed.set(cell && { query: cell.row, key: isSquare() ? cell.col : null });
  }

  function choose(cell: Cell): void {
    update(app, isSquare() ? { query: cell.row, key: cell.col } : { query: cell.row });
    if (!isSquare()) clicked = cell;
    explainCell();
  }

  /** Explains the cell that is pointed at or was clicked, or else the thread's cell. */
  const explainCell = withNumbers(app, (result) => {
    const { trace: name } = chosenPart(shownStep());
    const view = shownView(result);
    const selection = inView(app, result);
    const thread = threadOf(result, selection);
    const own = cellOf(thread, name, result.headDim);
    const other = pointedColumn === undefined ? clicked : { row: selection.query, col: pointedColumn };
    const cell = other && other.row < view.rows && other.col < view.cols && !view.colLabels ? other : own;
    map.highlight(cell.col < view.cols ? cell : { row: cell.row, col: null });
    explained = cell;
    const from = view.rowLabels[cell.row]!;
    const place = view.colLabels ? pairOf(from, view.colLabels[cell.col]!) : [word(from), `, column ${cell.col + 1}`];
    const value = formatNumber(numberAt(result, name, thread.head, cell));
    const isOwn = cell === own;
    const lead = isOwn ? cellOf(thread, 'merged', result.headDim).col : undefined;
    const next = isOwn ? goesOn(result, name, thread) : '';
    tell(explanation.show(place, value, explain(result, name, { ...cell, head: thread.head }, lead), next), cell);
  });

  const [isOtherStep, isOtherCell] = [differs(), differs()];

  /** Announces the number of a cell once another step or cell is chosen, or has the focus of the keyboard. */
  function tell(sentence: string, { row, col }: Cell): void {
    const { step, part, head, causal } = app.state.get();
    const [otherStep, otherCell] = [isOtherStep(step), isOtherCell([part, head, causal, row, col])];
    const isPointer = app.pointed.get() && !document.activeElement?.matches(':focus-visible');
    if ((!otherStep && !otherCell) || isPointer || !isOnScreen(detail)) return;
    say(otherStep ? `Step ${steps.indexOf(shownStep()) + 1}, ${shownStep().title}: ${sentence}` : sentence, detail);
  }

  /** Shows by movement how the step makes its matrix. */
  async function play(before: StepId): Promise<void> {
    if (reducedMotion.matches) return;
    const drawn = new Promise<void>((done) => (app.state.get().stepView === 'colors' ? map.afterDraw(done) : done()));
    // Without a network and without a copy of the script, nothing moves.
    const motion = await import('./motion.js').catch(() => null);
    motion?.moveOperands(explanation.moving());
    if (before !== shownStep().id) motion?.carry(document.querySelector(`#step-${before} .step-value`), explanation.moving());
    await drawn;
    const result = app.result.get();
    if (!motion || !result || app.state.get().stepView !== 'colors') return;
    if (shownStep().id === 'merge') motion.joinBands(map, shownView(result).bands ?? []);
    if (explained && explained.col < shownView(result).cols) motion.dropInto(map, explained, explanation.moving());
  }

  const draw = withNumbers(app, (result) => {
    write(result);
    show();
  });

  draw();
  const explainSoon = whenSeen(detail, explainCell);
  app.result.watch(whenSeen(detail, draw));
  app.pointed.watch(explainSoon);
  app.state.watch((state, previous) => {
    const changed = (...names: (keyof PageState)[]) => names.some((name) => state[name] !== previous?.[name]);
    const result = app.result.get();
    if (result && changed('part')) write(result);
    if (changed('step', 'part', 'head', 'query', 'key')) clicked = undefined;
    if (changed('step', 'head', 'part', 'stepView')) show();
    // A result that is about to be replaced does not move.
    if (previous && changed('step', 'part') && isCurrent(result, app)) void play(previous.step);
    else if (changed('query', 'key')) explainSoon();
  });
  new ResizeObserver(() => {
    const result = app.result.get();
    if (result) fixHeight(result);
    fitFormulas();
  }).observe(picture);
  return detail;
}

/** Lists the words that the chosen word's output is a mixture of, and the outputs that a bend has changed. */
function ending(app: App): HTMLElement {
  const line = el('p', { class: 'carries' });
  const draw = withNumbers(app, (result) => setText(line, carries(result, inView(app, result).query)));
  whenViewed(app, whenSeen(line, draw));
  return el('div', { class: 'well ending' }, el('strong', {}, 'After the last step '), line, effect(app));
}
