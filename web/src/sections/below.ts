// The sections below the first screen, in the order of the page, one per line. They are loaded after the first numbers.

import type { App } from '../app.js';
import { bendSection } from './bend.js';
import { gallerySection } from './gallery.js';
import { generateSection } from './generate.js';
import { ownModelSection } from './own_model.js';
import { revealSection } from './reveal.js';
import { speedSection } from './speed.js';
import { stepSection } from './step_through.js';
import { trainSection } from './train.js';
import { useItSection } from './use_it.js';

export const sections: readonly ((app: App) => HTMLElement)[] = [
  stepSection,
  revealSection,
  gallerySection,
  bendSection,
  trainSection,
  generateSection,
  (app) => ownModelSection(app),
  speedSection,
  useItSection,
];
