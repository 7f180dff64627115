// A plugin of TypeDoc: documents get their first heading as name, and links to public headers lead to the C++ reference.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Converter, PageEvent } from 'typedoc';

const headers = fileURLToPath(new URL('../../../src/multihead', import.meta.url));

/** The page of a header in Doxygen's output: a_b.h has a__b_8h.html. The header of all is the front page. */
const pageOf = (header) => (header === 'multihead.h' ? 'index.html' : header.replaceAll('_', '__').replace(/\.h$/, '_8h.html'));

/** @param {import('typedoc').Application} app */
export function load(app) {
  app.converter.on(Converter.EVENT_RESOLVE_BEGIN, ({ project }) => {
    for (const document of project.documents ?? []) {
      const [, title] = /^# (.+)$/m.exec(document.content.map(({ text }) => text).join(''));
      document.name = title === project.name ? 'The npm package' : title;
    }
  });
  // TypeDoc copies the files that documents link to into media/.
  app.renderer.on(PageEvent.END, (page) => {
    page.contents = page.contents?.replace(/"((?:\.\.\/)*)media\/([\w-]+\.h)"/g, (link, root, header) =>
      existsSync(join(headers, header)) ? `"${root}cpp/${pageOf(header)}"` : link,
    );
  });
}
