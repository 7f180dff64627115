// "Step through": the ten steps from x to the output. Everything in the panel keeps its place and height
// from step to step, so that the eye can stay where it is.

import { mostColumns, type ForwardResult, type Trace } from '../../attention/messages.js';
import { headName as nameOf } from '../../attention/patterns.js';
import { formatNumber, formatShape } from '../../base/format.js';
import { createHeadPicker } from '../../controls/head_picker.js';
import { createViewSwitch } from '../../controls/choice.js';
import { el, pairOf, panel, refill, rich, setText, word, type Child } from '../../dom/dom.js';
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
import { createCellExplanation } from './cell_explanation.js';
import { carries, explain } from './explain.js';
import { flowMap, stepButtons } from './flow_map.js';
import { formula, type FormulaName } from './formulas.js';
import { stepOf, steps, type Part, type Step } from './steps.js';

const maxCell = 44;
/** Height of a table with its border, in pixels. */
const tableHeight = 382;

export function stepSection(app: App): HTMLElement {
  const parts = [flowMap(app), stepButtons(app), stepDetail(app), ending(app)];
  return withResult(app, panel('steps', { title: 'Step through' }, ...parts));
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
  // Column of the cell that was last pointed at in a matrix of features. Such a matrix has no keys.
  let column: number | undefined;
  let explained: Cell | undefined;
  const texts = stack('step-texts');
  const formulas = stack('formula');
  const shape = el('p', { class: 'shape-line' });
  const parts = el('div', { class: 'segments', role: 'group', 'aria-label': 'Matrix' });
  const heads = createHeadPicker((head) => update(app, { head }), { id: 'show-head-' });
  const headName = el('span', { class: 'head-name', 'aria-hidden': 'true' });
  const views = createViewSwitch(app, 'stepView', 'Show the matrix as');
  const picture = el('div', { class: 'slim step-picture' });
  const explanation = createCellExplanation();
  const body = el('div', { class: 'step-body' }, picture, explanation.element);
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
    el('div', { class: 'row step-controls' }, heads.element, headName, parts, views.element),
    body,
    el('div', { class: 'row apart low map-under' }, el('div', { class: 'stack' }, legends.weights.element, legends.signed.element), saves),
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
    shape.replaceChildren(
      el('strong', { class: 'number' }, formatShape(result.trace[name].shape)),
      ' ',
      ...rich(step.axes),
      result.trace[name].shape.at(-1)! > mostColumns ? `; the first ${mostColumns} are shown` : '',
    );
    showControls(result, step, head);
    drawMatrix(result, name, head);
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
    refill(
      parts,
      ...(step.parts.length > 1 ? step.parts : steps[1]!.parts).map(({ label }) => {
        const button = el('button', { id: `part-${label}`, 'aria-pressed': String(label === part.label) }, label);
        button.addEventListener('click', () => update(app, { part: label as PageState['part'] }));
        return button;
      }),
    );
    const { muted } = result.bend;
    heads.show(result, muted, (index) => index === head);
    const name = `${nameOf(result, head)}${muted.includes(head) ? ', muted' : ''}`;
    headName.textContent = isPerHead(result.trace[part.trace]) ? name : 'all heads';
  }

  /** Gives the room that a small map leaves to the explanation of its cell. */
  function fixColumns(view: MatrixView): void {
    const whole = body.clientWidth;
    const { width } = layoutOf(view, whole, maxCell);
    const narrow = view.colLabels !== undefined && views.current() === 'colors' && whole > 750 && width < whole / 2;
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
    showMatrix(picture, map, { view, label, cellLabel }, views.current());
  }

  const isSquare = (): boolean => {
    const result = app.result.get();
    return result !== null && shownView(result).colLabels !== undefined;
  };

  function pointAt(cell: Cell | null): void {
    if (cell && !isSquare()) column = cell.col;
    app.pointed.set(cell && { query: cell.row, key: isSquare() ? cell.col : null });
  }

  function choose({ row, col }: Cell): void {
    update(app, isSquare() ? { query: row, key: col } : { query: row });
  }

  /** Explains one cell: the cell of the selection, or else the largest in the chosen query's row. */
  const explainCell = withNumbers(app, (result) => {
    const { trace: name } = chosenPart(shownStep());
    const view = shownView(result);
    const { query, key, head } = inView(app, result);
    const col = view.colLabels ? key : (column ?? null);
    const cell = col !== null && col < view.cols ? { row: query, col } : strongestCell(view, query);
    map.highlight(cell);
    explained = cell;
    const from = view.rowLabels[cell.row]!;
    const place = view.colLabels ? pairOf(from, view.colLabels[cell.col]!) : [word(from), `, column ${cell.col + 1}`];
    const value = formatNumber(view.data[cell.row * view.cols + cell.col]!);
    explanation.show(place, value, explain(result, name, { ...cell, head }));
  });

  /** Shows by movement how the step makes its matrix. */
  async function play(): Promise<void> {
    if (reducedMotion.matches) return;
    const drawn = new Promise<void>((done) => (views.current() === 'colors' ? map.afterDraw(done) : done()));
    // Without a network and without a copy of the script, nothing moves.
    const motion = await import('./motion.js').catch(() => null);
    motion?.moveOperands(explanation.moving());
    await drawn;
    const result = app.result.get();
    if (!motion || !result || views.current() !== 'colors') return;
    if (shownStep().id === 'merge') motion.joinBands(map, shownView(result).bands ?? []);
    if (explained) motion.dropInto(map, explained, explanation.moving());
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
    const differs = (...names: (keyof PageState)[]) => names.some((name) => state[name] !== previous?.[name]);
    const result = app.result.get();
    if (result && differs('part')) write(result);
    if (differs('step', 'head', 'part', 'stepView')) show();
    // The numbers that move are those of the present choices, not of a result that is about to be replaced.
    if (previous && differs('step', 'part') && isCurrent(result, app)) void play();
    else if (differs('query', 'key')) explainSoon();
  });
  new ResizeObserver(() => {
    const result = app.result.get();
    if (result) fixHeight(result);
    fitFormulas();
  }).observe(picture);
  return detail;
}

/** Says in words which words the chosen word's output consists of. */
function ending(app: App): HTMLElement {
  const line = el('p', { class: 'carries' });
  const draw = withNumbers(app, (result) => setText(line, carries(result, inView(app, result).query)));
  whenViewed(app, whenSeen(line, draw));
  return el('div', { class: 'well ending' }, el('strong', {}, 'After the last step '), line);
}

function strongestCell({ data, cols }: MatrixView, row: number): Cell {
  let col = 0;
  for (let c = 0; c < cols; c += 1) {
    const [value, best] = [data[row * cols + c]!, data[row * cols + col]!];
    if (Number.isFinite(value) && Math.abs(value) > Math.abs(best)) col = c;
  }
  return { row, col };
}
