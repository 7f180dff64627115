// The text of the small English model: Jane Austen's six novels, from the Debian package r-cran-janeaustenr. They are in the
// public domain; the package itself is under the MIT license.
import { join } from 'node:path';
import { downloadFromDebian13, unpack } from '../debian.mjs';
import { openDatabase } from './r_database.mjs';

export const SOURCE = { package: 'r-cran-janeaustenr', license: 'public domain' };
const NOVELS = ['sensesensibility', 'prideprejudice', 'mansfieldpark', 'emma', 'northangerabbey', 'persuasion'];
/** Share of each novel, at its end, that the model is not trained on. */
const HELD_OUT = 0.05;

/**
 * The paragraphs of a novel, each one line. Leaves out titles, headings of chapters, notes on the text, and the underscores
 * of italics.
 * @param {string[]} lines
 */
export function paragraphsOf(lines) {
  const isHeading = /^(volume|chapter) [ivxl\d]+$|^finis$|^the end$|^by$|^(by )?jane austen( \(\d+\))?$|^persuasion$|^[^a-z]*$/i;
  const note = lines.indexOf('A NOTE ON THE TEXT');
  const text = lines.slice(0, note === -1 ? undefined : note).join('\n');
  return text
    .split(/\n\s*\n/)
    .map((paragraph) => paragraph.replaceAll('_', '').replace(/\s+/g, ' ').trim())
    .filter((paragraph) => /[a-z]/.test(paragraph) && !isHeading.test(paragraph));
}

/**
 * Cuts paragraphs in two after a share of their characters.
 * @param {string[]} paragraphs
 * @returns {{ training: string[], heldOut: string[] }}
 */
export function split(paragraphs) {
  const total = paragraphs.reduce((sum, { length }) => sum + length, 0);
  let read = 0;
  const end = paragraphs.findIndex(({ length }) => (read += length) > (1 - HELD_OUT) * total);
  return { training: paragraphs.slice(0, end), heldOut: paragraphs.slice(end) };
}

/**
 * Fetches the novels into a folder.
 * @param {string} folder
 */
export async function readText(folder) {
  const { file, version } = (await downloadFromDebian13([SOURCE.package], folder))[SOURCE.package];
  const unpacked = join(folder, 'novels');
  await unpack(file, unpacked, ['--strip-components=6', './usr/lib/R/site-library/janeaustenr/data']);
  const linesOf = await openDatabase(join(unpacked, 'data'));
  const parts = NOVELS.map((name) => split(paragraphsOf(linesOf(name))));
  return {
    version,
    training: parts.flatMap(({ training }) => training),
    heldOut: parts.flatMap(({ heldOut }) => heldOut),
  };
}
