// Writes the guides as HTML pages, and the page that links to them and to the references.
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import MarkdownIt from 'markdown-it';
import { ROOT } from '../build.mjs';
import { SetupError } from '../console.mjs';

const GUIDES = [
  ...['attention', 'gpt2', 'masks', 'heads', 'training'].map((name) => `bindings/guides/${name}.md`),
  'native/guides/library.md',
];

/**
 * Rewrites a link in a guide for the website: other guides become their page, headers their page in the C++ reference.
 */
function target(link) {
  if (/^https?:/.test(link)) return link;
  const file = basename(link);
  if (GUIDES.some((path) => basename(path) === file)) return file.replace(/\.md$/, '.html');
  // Doxygen's file name for a page: a_b.h becomes a__b_8h.html.
  if (file.endsWith('.h')) return `../cpp/${file.replaceAll('_', '__').replace(/\.h$/, '_8h.html')}`;
  throw new SetupError(`A guide links to ${link}, for which there is no page`);
}

function renderer() {
  const markdown = new MarkdownIt();
  markdown.core.ruler.push('links', ({ tokens }) => {
    for (const token of tokens.flatMap(({ children }) => children ?? [])) {
      if (token.type === 'link_open') token.attrSet('href', target(token.attrGet('href')));
    }
  });
  return markdown;
}

const page = (title, body, root) => `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>${title} – multihead</title>
<link rel="stylesheet" href="${root}guides.css">
${root ? `<nav><a href="${root}index.html">multihead: guides and reference</a></nav>\n` : ''}<main>
${body}</main>
</html>
`;

/**
 * Writes index.html, guides/*.html and guides.css.
 * @param {string} folder
 * @returns {Promise<number>} number of pages
 */
export async function writeGuides(folder) {
  const markdown = renderer();
  await mkdir(join(folder, 'guides'), { recursive: true });
  const links = [];
  for (const path of GUIDES) {
    const text = await readFile(join(ROOT, path), 'utf8');
    const [, title] = /^# (.+)$/m.exec(text);
    const name = basename(path, '.md');
    await writeFile(join(folder, 'guides', `${name}.html`), page(title, markdown.render(text), '../'));
    links.push(`<li><a href="guides/${name}.html">${title}</a></li>`);
  }
  const body = `<h1>multihead</h1>
<p>Exact multi-head attention, for JavaScript and for C++.</p>
<h2>Guides</h2>
<ul>
${links.join('\n')}
</ul>
<h2>Reference</h2>
<ul>
<li><a href="js/index.html">The npm package</a></li>
<li><a href="cpp/index.html">The C++ library</a></li>
</ul>
`;
  await writeFile(join(folder, 'index.html'), page('Guides and reference', body, ''));
  await writeFile(join(folder, 'guides.css'), await readFile(new URL('guides.css', import.meta.url)));
  return GUIDES.length + 1;
}
