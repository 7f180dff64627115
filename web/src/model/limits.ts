// Limits on what an address and the page say about a model, and the texts of sizes and names.

import type { ModelInfo } from 'multihead/models';
import { printable } from '../base/format.js';

export const maxNameCharacters = 100;

/** Most tokens of a text whose maps are shown. */
export const mostTokens = 64;

/** Patches of a picture that can be chosen. A text has fewer tokens. */
export const maxPatches = 4096;

/** The scores of heads, which can be sorted by them. */
export const scoreNames = ['previous', 'first', 'itself', 'induction', 'entropy'] as const;
export type ScoreName = (typeof scoreNames)[number];

/** True for models that continue a text. */
export const isWriter = ({ output, causal, encoder }: ModelInfo): boolean => output === 'languageModel' && causal && encoder === undefined;

export const nameInAddress = (model: { readonly name: string }): string => model.name.slice(0, maxNameCharacters);

/** Formats a size: "548 MB", "1.50 GB". */
export const formatBytes = (bytes: number): string =>
  bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : bytes >= 1e6 ? `${(bytes / 1e6).toFixed(0)} MB` : `${(bytes / 1e3).toFixed(0)} kB`;

/** A sentence if a model's weights take more than a quarter of the memory, in GB; empty if not. */
export const warningOf = (bytes: number, memory: number): string =>
  bytes > memory * 0.25e9
    ? ` It takes about ${formatBytes(bytes)}, much for a page on this device: if the page ends, choose int4 under “Memory”, or a smaller model.`
    : '';

export const englishName = 'small English model';

/** A name as the page shows it. The words model of the first screen has read the same novels, so the little Llama has a name of its own. */
export const shownName = (model: { readonly name: string }): string => (model.name === englishName ? 'the little Llama' : printable(model.name));
