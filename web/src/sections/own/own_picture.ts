// The picture that a model of pictures looks at: the visitor's, or a drawing of the page.

import { messageOf } from '../../base/format.js';
import { el } from '../../dom/dom.js';

/** Side of the drawing and of the preview. */
const side = 224;
/** Phones have no larger canvas. */
const mostSide = 4096;

export function createPictureChoice(onChange: () => void) {
  const input = el('input', { type: 'file', id: 'own-picture', class: 'sr-only', accept: 'image/*' });
  const preview = el('canvas', { class: 'own-preview', width: side, height: side, role: 'img', 'aria-label': 'The picture' });
  const problem = el('p', { class: 'hint', role: 'status' });
  const choose = el('label', { class: 'own-picture-choice', for: 'own-picture' }, input, el('strong', {}, 'Choose a picture'));
  const element = el('div', { class: 'row own-picture-box' }, preview, el('div', {}, choose, problem));
  let bitmap: ImageBitmap | undefined;
  let count = 0;

  input.addEventListener('change', async () => {
    const file = input.files?.[0];
    input.value = '';
    if (!file) return;
    try {
      bitmap = await createImageBitmap(file);
      problem.textContent = '';
      count += 1;
      onChange();
    } catch (error) {
      problem.textContent = `The browser cannot read this picture: ${messageOf(error)}`;
    }
  });

  function paint(width: number, height: number): CanvasRenderingContext2D {
    const pen = el('canvas', { width, height }).getContext('2d', { willReadFrequently: true })!;
    if (bitmap) pen.drawImage(bitmap, 0, 0, width, height);
    else drawing(pen);
    return pen;
  }

  return {
    element,
    key: (): string => `picture ${count}`,
    /** The picture. Shows it. */
    image(): ImageData {
      const { width, height } = bitmap ?? { width: side, height: side };
      const shrink = Math.min(1, mostSide / Math.max(width, height));
      const pen = paint(Math.max(1, Math.round(width * shrink)), Math.max(1, Math.round(height * shrink)));
      const { canvas } = pen;
      const fit = side / Math.max(canvas.width, canvas.height);
      preview.width = Math.max(1, Math.round(canvas.width * fit));
      preview.height = Math.max(1, Math.round(canvas.height * fit));
      preview.getContext('2d')!.drawImage(canvas, 0, 0, preview.width, preview.height);
      return pen.getImageData(0, 0, canvas.width, canvas.height);
    },
  };
}

/** A house under the sun, until the visitor chooses a picture. */
function drawing(pen: CanvasRenderingContext2D): void {
  const box = (color: string, ...at: [x: number, y: number, width: number, height: number]): void => {
    pen.fillStyle = color;
    pen.fillRect(...at);
  };
  box('#9cc9ee', 0, 0, side, side);
  box('#5f9a4b', 0, 150, side, 74);
  box('#f6c945', 158, 18, 48, 48);
  box('#e9dcc3', 56, 96, 100, 84);
  box('#b4492f', 44, 62, 124, 36);
  box('#6b4a2f', 94, 130, 26, 50);
}
