// "Step through": the ten steps from x to the output, each with its formula, shape and matrix.

import { chosen, inView, update, type App } from '../app.js';
import { explain } from '../explain.js';
import type { ForwardResult, Trace } from '../messages.js';
import type { PageState, StepId } from '../page_state.js';
import { el, headBadge, pairOf, refill, rich, word } from '../parts/dom.js';
import { formatNumber, formatShape } from '../parts/format.js';
import { formula } from '../parts/formulas.js';
import { createLegend } from '../parts/legend.js';
import { largestOf, type MatrixView } from '../parts/heat_map.js';
import { createMap, type Cell } from '../parts/matrix_map.js';
import { matrixTable } from '../parts/matrix_table.js';
import { createViewSwitch } from '../parts/view_switch.js';
import { patternOf } from '../patterns.js';
import { isPerHead, stepOf, steps, viewOf, type Part, type Step } from '../steps.js';

export function stepSection(app: App): HTMLElement {
  const list = stepList(app);
  const detail = stepDetail(app);
  const section = el(
    'section',
    { class: 'panel', id: 'steps', 'aria-labelledby': 'steps-title' },
    el('h2', { id: 'steps-title' }, 'Step through'),
    el('p', { class: 'lead' }, 'From tokens to output in ten steps, with the numbers of your sentence.'),
    el('div', { class: 'steps' }, list, detail),
  );
  app.result.watch((result) => {
    section.hidden = result === null;
  });
  return section;
}

function stepList(app: App): HTMLElement {
  const tabs = steps.map(({ id, symbol, title }, index) => {
    const shape = el('span', { class: 'step-shape number' });
    const tab = el(
      'button',
      { type: 'button', role: 'tab', class: 'step', id: `step-${id}`, 'aria-controls': 'step-detail' },
      el('span', { class: 'step-number', 'aria-hidden': 'true' }, String(index + 1)),
      el('span', { class: 'step-symbol' }, ...rich(symbol)),
      el('span', { class: 'sr-only' }, `, ${title}, shape `),
      shape,
    );
    tab.addEventListener('click', () => update(app, { step: id }));
    app.result.watch((result) => {
      if (result) shape.textContent = formatShape(result.trace[stepOf(id).parts[0]!.trace].shape);
    });
    return tab;
  });
  const element = el('div', { class: 'step-list', role: 'tablist', 'aria-label': 'Steps' }, ...tabs);
  element.addEventListener('keydown', (event) => {
    const now = steps.findIndex(({ id }) => id === app.state.get().step);
    const moves: Readonly<Record<string, number>> = {
      ArrowDown: now + 1,
      ArrowRight: now + 1,
      ArrowUp: now - 1,
      ArrowLeft: now - 1,
      Home: 0,
      End: steps.length - 1,
    };
    const next = moves[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const target = (next + steps.length) % steps.length;
    update(app, { step: steps[target]!.id });
    tabs[target]!.focus();
  });
  function select(): void {
    const { step } = app.state.get();
    tabs.forEach((tab, index) => {
      const selected = steps[index]!.id === step;
      tab.setAttribute('aria-selected', String(selected));
      tab.tabIndex = selected ? 0 : -1;
      // Scrolls the list sideways. scrollIntoView() would also scroll the page.
      if (selected) element.scrollLeft = tab.offsetLeft - (element.clientWidth - tab.offsetWidth) / 2;
    });
  }
  app.state.watch(({ step }, previous) => {
    if (step !== previous?.step) select();
  });
  // A hidden section has no layout and cannot scroll, so select again when it appears.
  app.result.watch((result, previous) => {
    if (result && !previous) requestAnimationFrame(select);
  });
  return element;
}

function stepDetail(app: App): HTMLElement {
  // The column of the last cell pointed at in a matrix of features, which has no keys.
  let column: number | undefined;
  const title = el('h3', {});
  const text = el('p', { class: 'step-text' });
  const formulaBox = el('div', { class: 'formula' });
  const shape = el('p', { class: 'shape-line' });
  const controls = el('div', { class: 'step-controls' });
  const picture = el('div', { class: 'step-picture' });
  const origin = el('div', { class: 'origin' });
  const body = el('div', { class: 'step-body' }, picture, origin);
  const legends = { weights: createLegend('weights'), signed: createLegend('signed') };
  const legendBox = el('div', {});
  const map = createMap({ maxCell: 48, sizer: body, onPoint: pointAt, onChoose: choose });
  const views = createViewSwitch(app, 'stepView', 'Show the matrix as');
  const detail = el(
    'div',
    { class: 'step-detail', role: 'tabpanel', id: 'step-detail' },
    title,
    text,
    el('div', { class: 'formula-row' }, formulaBox, shape),
    controls,
    body,
    legendBox,
    walkButtons(app),
  );

  const chosenPart = (step: Step): Part =>
    step.parts.find(({ label }) => label === app.state.get().part) ?? step.parts[0]!;

  function show(): void {
    const result = app.result.get();
    if (!result) return;
    const { head } = chosen(app, result);
    const step = stepOf(app.state.get().step);
    const { trace: name, formula: formulaName } = chosenPart(step);
    const matrix = result.trace[name];
    detail.setAttribute('aria-labelledby', `step-${step.id}`);
    title.textContent = `${steps.indexOf(step) + 1}. ${step.title}`;
    text.replaceChildren(...rich(step.text));
    formulaBox.replaceChildren(formula(formulaName));
    shape.replaceChildren(
      el('strong', { class: 'number' }, formatShape(matrix.shape)),
      ' ',
      ...rich(step.axes),
    );
    showControls(result, step, head);
    showMatrix(result, name, head);
    explainCell();
  }

  function showControls(result: ForwardResult, step: Step, head: number): void {
    const groups: HTMLElement[] = [];
    if (step.parts.length > 1) {
      const buttons = step.parts.map(({ label }) =>
        choice(
          `part-${label}`,
          label === chosenPart(step).label,
          () => update(app, { part: label as PageState['part'] }),
          label,
        ),
      );
      groups.push(el('div', { class: 'segments', role: 'group', 'aria-label': 'Matrix' }, ...buttons));
    }
    if (isPerHead(result.trace[chosenPart(step).trace])) {
      const buttons = result.heads.map((id, index) =>
        choice(
          `show-head-${index + 1}`,
          index === head,
          () => update(app, { head: index }),
          headBadge(index + 1, id),
          el('span', { class: 'sr-only' }, `head ${index + 1}, ${patternOf(id).name}`),
        ),
      );
      groups.push(el('div', { class: 'segments heads', role: 'group', 'aria-label': 'Head' }, ...buttons));
      groups.push(
        el('span', { class: 'head-name', 'aria-hidden': 'true' }, patternOf(result.heads[head]!).name),
      );
    }
    refill(controls, ...groups, views.element);
  }

  function showMatrix(result: ForwardResult, name: keyof Trace, head: number): void {
    const view = viewOf(result, name, head);
    const perHead = isPerHead(result.trace[name]);
    const legend = legends[view.scale];
    legend.show(view.hidden !== undefined, largestOf(view));
    legendBox.replaceChildren(legend.element);
    const label = `${name}${perHead ? ` of head ${head + 1}` : ''}, ${view.rows} by ${view.cols}`;
    if (views.current() === 'numbers') {
      refill(picture, matrixTable(view, label));
      return;
    }
    if (picture.firstElementChild !== map.element) picture.replaceChildren(map.element);
    const where = perHead ? `head ${head + 1}, ` : `${name}, `;
    map.show({
      view,
      label,
      cellLabel: ({ row, col }) => {
        const value = formatNumber(view.data[row * view.cols + col]!, 3);
        return view.colLabels
          ? `${where}query ${view.rowLabels[row]}, key ${view.colLabels[col]}, ${value}`
          : `${where}token ${view.rowLabels[row]}, column ${col + 1}, ${value}`;
      },
    });
  }

  const isSquare = (): boolean => {
    const result = app.result.get();
    return result !== null && shownView(result).colLabels !== undefined;
  };

  function shownView(result: ForwardResult): MatrixView {
    const { trace: name } = chosenPart(stepOf(app.state.get().step));
    return viewOf(result, name, chosen(app, result).head);
  }

  function pointAt(cell: Cell | null): void {
    if (cell && !isSquare()) column = cell.col;
    app.pointed.set(cell && { query: cell.row, key: isSquare() ? cell.col : null });
  }

  function choose({ row, col }: Cell): void {
    update(app, isSquare() ? { query: row, key: col } : { query: row });
  }

  /** Explains one cell: of the selection, or else the largest of the chosen query's row. */
  function explainCell(): void {
    const result = app.result.get();
    if (!result) return;
    const { trace: name } = chosenPart(stepOf(app.state.get().step));
    const view = shownView(result);
    const { query, key, head } = inView(app, result);
    const col = view.colLabels ? key : (column ?? null);
    const cell = col !== null && col < view.cols ? { row: query, col } : strongestCell(view, query);
    map.highlight(cell);
    const from = view.rowLabels[cell.row]!;
    const place = view.colLabels
      ? pairOf(from, view.colLabels[cell.col]!)
      : [word(from), `, column ${cell.col + 1}`];
    origin.replaceChildren(
      el('p', { class: 'origin-pair' }, ...place),
      el('p', { class: 'origin-value number' }, formatNumber(view.data[cell.row * view.cols + cell.col]!)),
      el('p', { class: 'origin-why' }, ...rich(explain(result, name, { ...cell, head }))),
    );
  }

  app.result.watch(show);
  app.pointed.watch(explainCell);
  app.state.watch((state, previous) => {
    const differs = (...names: (keyof PageState)[]) => names.some((name) => state[name] !== previous?.[name]);
    if (differs('step', 'head', 'part', 'stepView')) show();
    else if (differs('query', 'key')) explainCell();
  });
  return detail;
}

function strongestCell({ data, cols }: MatrixView, row: number): Cell {
  let col = 0;
  for (let c = 0; c < cols; c += 1) {
    const [value, best] = [data[row * cols + c]!, data[row * cols + col]!];
    if (Number.isFinite(value) && Math.abs(value) > Math.abs(best)) col = c;
  }
  return { row, col };
}

function choice(
  id: string,
  pressed: boolean,
  onClick: () => void,
  ...content: (Node | string)[]
): HTMLElement {
  const button = el('button', { type: 'button', id, 'aria-pressed': String(pressed) }, ...content);
  button.addEventListener('click', onClick);
  return button;
}

function walkButtons(app: App): HTMLElement {
  const make = (label: string, by: number) => {
    const button = el('button', { type: 'button', class: 'walk' }, label);
    const target = (): StepId | undefined =>
      steps[steps.findIndex(({ id }) => id === app.state.get().step) + by]?.id;
    button.addEventListener('click', () => {
      const step = target();
      if (step) update(app, { step });
    });
    app.state.watch(() => {
      button.disabled = target() === undefined;
    });
    return button;
  };
  return el('div', { class: 'walks' }, make('← Back', -1), make('Next step →', 1));
}
