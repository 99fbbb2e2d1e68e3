// Colours code: highlight.js finds the parts of a text, and this file makes their elements, so text never
// becomes HTML.
import hljs from 'highlight.js/lib/core';
import bash from 'highlight.js/lib/languages/bash';
import cpp from 'highlight.js/lib/languages/cpp';
import diff from 'highlight.js/lib/languages/diff';
import go from 'highlight.js/lib/languages/go';
import ini from 'highlight.js/lib/languages/ini';
import java from 'highlight.js/lib/languages/java';
import json from 'highlight.js/lib/languages/json';
import python from 'highlight.js/lib/languages/python';
import rust from 'highlight.js/lib/languages/rust';
import sql from 'highlight.js/lib/languages/sql';
import typescript from 'highlight.js/lib/languages/typescript';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';

/** Longer code, and code with a longer line, has no colours: some patterns take time that grows with the square. */
const MAX_CHARS = 20_000;
const MAX_LINE = 250;

const LANGUAGES = { bash, cpp, diff, go, ini, java, json, python, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);
// These grammars contain those of C and JavaScript, which need not be carried too.
hljs.registerAliases(['c', 'h'], { languageName: 'cpp' });
hljs.registerAliases(['javascript', 'js', 'jsx', 'mjs', 'cjs'], { languageName: 'typescript' });

/** The class of each kind of part. Other parts look like what they stand in. */
const CLASSES = Object.fromEntries(
  Object.entries({
    'code-note': 'comment quote meta',
    'code-word': 'keyword literal tag name',
    'code-string': 'string regexp addition',
    'code-value': 'number symbol bullet deletion variable',
    'code-name': 'title type built_in section attr attribute',
    '': 'subst',
  }).flatMap(([name, kinds]) => kinds.split(' ').map((kind) => [kind, name])),
);

/** Makes elements of what highlight.js finds, side by side: code may nest deeper than a page can. */
class Elements {
  root = document.createDocumentFragment();
  #open = [''];

  addText(text) {
    const name = this.#open.at(-1);
    const part = name ? document.createElement('span') : text;
    if (name) {
      part.className = name;
      part.append(text);
    }
    this.root.append(part);
  }

  openNode(kind) {
    this.#open.push(CLASSES[kind.split('.')[0]] ?? this.#open.at(-1));
  }

  closeNode() {
    this.#open.pop();
  }

  startScope(kind) {
    this.openNode(kind);
  }

  endScope() {
    this.closeNode();
  }

  __addSublanguage({ root }) {
    this.root.append(root);
  }

  finalize() {}

  toHTML() {
    return '';
  }
}

hljs.configure({ __emitter: Elements });

/** What shows `text`: elements if `language` is known, else the text. */
export function coloured(text, language) {
  const isLong = text.length > MAX_CHARS || text.split('\n').some((line) => line.length > MAX_LINE);
  if (isLong || !hljs.getLanguage(language)) return text;
  const { root } = hljs.highlight(text, { language, ignoreIllegals: true })._emitter;
  return root.textContent === text ? root : text; // a fault in a grammar ends its work early
}
