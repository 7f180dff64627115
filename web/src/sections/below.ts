// The sections below the first screen, in the order of the page, one per line. They are loaded after the first numbers.

import '../below.css';
import type { App } from '../state/app.js';
import { tables } from '../maps/map_frame.js';
import { matrixTable } from '../maps/matrix_table.js';
import { gallerySection } from './gallery/gallery.js';
import { ownModelSection } from './own/own_model.js';
import { speedSection } from './speed/speed.js';
import { stepSection } from './steps/step_through.js';
import { generateSection } from './training/generate.js';
import { trainSection } from './training/train.js';
import { useItSection } from './use_it/use_it.js';

tables.set(matrixTable);

export { sentenceBar } from '../page/bar.js';
export { addMore } from './sentence/more.js';

export const sections: readonly ((app: App) => HTMLElement)[] = [
  stepSection,
  gallerySection,
  trainSection,
  generateSection,
  ownModelSection,
  speedSection,
  useItSection,
];
