// The questions that newcomers ask, each with its answer and the step that shows it.

import { el } from '../../dom/dom.js';
import { update, type App } from '../../state/app.js';
import type { StepId } from '../../state/page_state.js';
import { stepOf, steps } from './steps.js';

interface Question {
  readonly question: string;
  readonly answer: string;
  /** The step, or else the section, that shows the answer. */
  readonly step?: StepId;
  readonly section?: { readonly id: string; readonly name: string };
}

const questions: readonly Question[] = [
  {
    question: 'What is a query, a key, a value?',
    answer:
      'Three rows of numbers made from each word. The query says what the word looks for. The key says what it can be found by. The value is what it hands over once it is found.',
    step: 'project',
  },
  {
    question: 'Why divide by √d?',
    answer:
      'Longer vectors give larger dot products, and softmax would then put nearly all the weight on one word. Dividing by √d keeps the scores the same size, however wide a head is.',
    step: 'scale',
  },
  {
    question: 'Why softmax?',
    answer:
      'Scores can be any number. Softmax makes them weights: positive, and 1 in total. So the output is a weighted mean of the values, and small changes of the scores make small changes of the weights.',
    step: 'softmax',
  },
  {
    question: 'Why several heads?',
    answer:
      'One head gives each word a single row of weights. With several heads, a word can look at the word before it and at an earlier copy of itself at once, and keep the two findings apart.',
    step: 'merge',
  },
  {
    question: 'What does causal do?',
    answer:
      'It hides later words. A model that learns to predict the next word must not see it. So nothing computed for earlier words changes when a word is added.',
    step: 'mask',
  },
  {
    question: 'What does a cache save?',
    answer:
      'With the causal mask, keys and values of earlier words never change. Kept in a cache, they are not computed again: each new word costs one row instead of the whole table.',
    section: { id: 'generate', name: 'Generate' },
  },
];

export function questionList(app: App): HTMLElement {
  const items = questions.map(({ question, answer, step, section }) => {
    const where = el('p', { class: 'question-where' });
    if (step) {
      const button = el('button', { class: 'secondary' }, `Show step ${steps.indexOf(stepOf(step)) + 1}: ${stepOf(step).title}`);
      button.addEventListener('click', () => {
        update(app, { step });
        document.getElementById('steps')?.scrollIntoView();
        document.getElementById(`step-${step}`)?.focus({ preventScroll: true });
      });
      where.append(button);
    }
    if (section) where.append(el('a', { href: `#${section.id}` }, `See it in “${section.name}”`));
    return el('details', { class: 'question' }, el('summary', {}, question), el('p', {}, answer), where);
  });
  return el('div', { class: 'questions' }, el('h3', { id: 'questions-title' }, 'Six questions that newcomers ask'), ...items);
}
