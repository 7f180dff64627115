// The picture that a model of pictures looks at: the visitor's, or a drawing of the page.

import { messageOf } from '../../base/format.js';
import { el } from '../../dom/dom.js';
import type { GivenFiles, PictureFormat } from '../../model/messages.js';
import { normalized, normalizationOf } from '../../model/pixels.js';

/** Side of the drawing and of the preview. */
const side = 224;

export function createPictureChoice(onChange: () => void) {
  const input = el('input', { type: 'file', id: 'own-picture', class: 'sr-only', accept: 'image/*' });
  const preview = el('canvas', { class: 'own-preview', width: side, height: side, role: 'img', 'aria-label': 'The picture as the model sees it' });
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

  function paint(pen: CanvasRenderingContext2D, size: number): void {
    pen.setTransform(size / side, 0, 0, size / side, 0, 0);
    if (bitmap) pen.drawImage(bitmap, 0, 0, side, side);
    else drawing(pen);
  }

  return {
    element,
    /** Changes with every picture. */
    key: (): string => `picture ${count}`,
    /** The picture's numbers in the form that the model wants. Shows the picture. */
    async pixels(format: PictureFormat, files: GivenFiles): Promise<Float32Array<ArrayBuffer>> {
      paint(preview.getContext('2d')!, side);
      const canvas = el('canvas', { width: format.imageSize, height: format.imageSize });
      const pen = canvas.getContext('2d', { willReadFrequently: true })!;
      paint(pen, format.imageSize);
      const config = files.files.find(({ path }) => path === 'preprocessor_config.json');
      return normalized(
        pen.getImageData(0, 0, format.imageSize, format.imageSize).data,
        format,
        normalizationOf(await config?.file.text(), format.channels),
      );
    },
  };
}

/** A house under the sun, until the visitor chooses a picture. */
function drawing(pen: CanvasRenderingContext2D): void {
  const shape = (color: string, draw: (path: Path2D) => void): void => {
    const path = new Path2D();
    draw(path);
    pen.fillStyle = color;
    pen.fill(path);
  };
  shape('#9cc9ee', (path) => path.rect(0, 0, side, side));
  shape('#5f9a4b', (path) => path.rect(0, 150, side, 74));
  shape('#f6c945', (path) => path.arc(182, 42, 24, 0, 2 * Math.PI));
  shape('#e9dcc3', (path) => path.rect(56, 96, 100, 84));
  shape('#b4492f', (path) => {
    path.moveTo(44, 98);
    path.lineTo(106, 46);
    path.lineTo(168, 98);
  });
  shape('#6b4a2f', (path) => path.rect(94, 130, 26, 50));
}
