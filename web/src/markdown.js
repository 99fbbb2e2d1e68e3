// Shows a model's Markdown. `marked` splits it into tokens; this file makes the elements itself, from a
// fixed list, so text never becomes HTML and nothing is left to sanitize. Images and HTML are shown as text.
import { Lexer } from 'marked';
import { copy } from './copy.js';
import { masked, restored } from './mathematics.js';
import { coloured } from './syntax.js';

/** Longer text is shown as it is: some patterns take time that grows with the square of their length. */
const MAX_CHARS = 60_000;

/** Tokens deeper than this are shown as text. */
const MAX_DEPTH = 24;

/** Models' headings begin below the page's own: h1 is the conversation, h2 a message. */
const LAST_LEVEL = 2;

/**
 * Shows a text that may grow, and keeps the elements of blocks that did not change. Returns
 * `update(text)`.
 * @param {Element} container
 */
export function markdown(container) {
  let shown = []; // { key, nodes } of each block
  return function update(text) {
    const blocks = parse(text);
    let same = 0;
    while (same < blocks.length && shown[same]?.key === blocks[same].key) same++;
    shown.splice(same).forEach(({ nodes }) => nodes.forEach((node) => node.remove()));
    for (const { key, token, level } of blocks.slice(same)) {
      const nodes = token ? [block(token, 0, level)].filter(Boolean) : [element('p', 'raw', text)];
      container.append(...nodes);
      shown.push({ key, nodes });
    }
  };
}

/** What a screen reader should say of a Markdown text: no marks, a line for each block. */
export function plainText(text) {
  const container = document.createElement('div');
  markdown(container)(text);
  container.querySelectorAll('button').forEach((button) => button.remove());
  return Array.from(container.children, (shown) => shown.textContent).join('\n');
}

/** The blocks of `text`. A block's key says all that its elements depend on. */
function parse(text) {
  let tokens = null;
  try {
    if (text.length <= MAX_CHARS) tokens = new Lexer({ gfm: true }).lex(masked(text));
  } catch {
    // marked's recursion is too deep for this text
  }
  if (tokens === null) return [{ key: text, token: null }];
  // A definition changes the links before it.
  const links = JSON.stringify(tokens.links);
  let level = LAST_LEVEL;
  return tokens.map((token) => {
    if (token.type === 'heading') level = Math.min(level + 1, LAST_LEVEL + token.depth, 6);
    return { key: `${level} ${links} ${token.raw}`, token, level };
  });
}

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.map((child) => (typeof child === 'string' ? restored(child) : child)));
  return made;
}

/** The element of a block, or null if it shows nothing. Headings below the top are bold text. */
function block(token, depth, level = null) {
  if (depth > MAX_DEPTH) return element('p', 'raw', token.raw);
  const inner = () => inline(token.tokens ?? [], depth + 1);
  const blocks = () => token.tokens.map((child) => block(child, depth + 1)).filter(Boolean);
  switch (token.type) {
    case 'space':
    case 'def':
      return null;
    case 'heading':
      return level === null ? element('p', '', element('strong', '', ...inner())) : element(`h${level}`, '', ...inner());
    case 'paragraph':
      return element('p', '', ...inner());
    case 'text':
      return element('p', 'tight', ...(token.tokens ? inner() : [decode(token.text)]));
    case 'code':
      return code(restored(token.text), token.lang ?? '');
    case 'blockquote':
      return element('blockquote', '', ...blocks());
    case 'hr':
      return element('hr', '');
    case 'list':
      return list(token, depth);
    case 'table':
      return table(token, depth);
    case 'html':
      return element('p', 'raw', token.raw.trimEnd());
    default: // spans without a paragraph around them
      return element('p', 'tight', ...inline([token], depth + 1));
  }
}

function list(token, depth) {
  const made = element(token.ordered ? 'ol' : 'ul', '');
  if (token.ordered && Number.isSafeInteger(token.start)) made.start = token.start;
  for (const item of token.items) {
    const children = item.tokens.filter(({ type }) => type !== 'checkbox');
    const shown = element('li', item.task ? 'task' : '', ...children.map((child) => block(child, depth + 1)).filter(Boolean));
    // The box stands in the line of the text, which may be in a paragraph of its own.
    const line = shown.firstElementChild?.localName === 'p' ? shown.firstElementChild : shown;
    if (item.task) line.prepend(item.checked ? '☑ ' : '☐ ');
    made.append(shown);
  }
  return made;
}

function table(token, depth) {
  const row = (name, cells) =>
    element('tr', '', ...cells.map((cell) => element(name, cell.align ?? '', ...inline(cell.tokens, depth + 1))));
  const head = element('thead', '', row('th', token.header));
  const body = element('tbody', '', ...token.rows.map((cells) => row('td', cells)));
  return scrolling(element('div', 'wide', element('table', '', head, body)), 'Table');
}

/** What may be wider than the page scrolls, by keyboard too. */
function scrolling(made, label) {
  made.tabIndex = 0;
  made.setAttribute('role', 'group');
  made.setAttribute('aria-label', label);
  return made;
}

function code(text, language) {
  const name = language.match(/^[\w+#.-]{1,24}/)?.[0] ?? '';
  const button = element('button', 'quiet', 'Copy');
  button.type = 'button';
  button.setAttribute('aria-label', 'Copy code');
  button.addEventListener('click', async () => {
    button.textContent = (await copy(text)) ? 'Copied' : 'Not copied';
    setTimeout(() => (button.textContent = 'Copy'), 2000);
  });
  const head = element('div', 'code-head', element('span', '', name), button);
  const body = scrolling(element('pre', '', element('code', '', coloured(text, name))), name ? `Code, ${name}` : 'Code');
  return element('div', 'code', head, body);
}

/** The nodes of spans. */
function inline(tokens, depth) {
  return tokens.map((token) => (depth > MAX_DEPTH ? token.raw : span(token, depth)));
}

function span(token, depth) {
  const inner = () => inline(token.tokens ?? [], depth + 1);
  switch (token.type) {
    case 'strong':
    case 'em':
    case 'del':
      return element(token.type, '', ...inner());
    case 'codespan':
      return element('code', '', token.text);
    case 'br':
      return element('br', '');
    case 'checkbox': // `list` shows it
      return '';
    case 'link':
      return link(token.autolink ? token.href : decode(token.href), inner());
    case 'image':
      return link(decode(token.href), [`[image: ${decode(token.text) || 'no description'}]`]);
    case 'text':
      return token.tokens ? element('span', '', ...inner()) : decode(token.text);
    case 'escape':
      return token.text;
    default: // html and what marked may add: as it was written
      return token.raw;
  }
}

/** A link, if its address is a whole one and http or https; otherwise its text. */
function link(href, children) {
  let address = null;
  try {
    address = new URL(href);
  } catch {
    // relative to this page, or no address at all
  }
  if (!['http:', 'https:'].includes(address?.protocol)) return element('span', 'dead-link', ...children);
  const made = element('a', '', ...children);
  made.href = address.href;
  made.target = '_blank';
  made.rel = 'noopener noreferrer';
  made.title = address.href; // the text may claim another address
  return made;
}

const NAMED = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0' };

/** Text with its character references resolved: the numbers and the commonest names. */
function decode(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(amp|lt|gt|quot|apos|nbsp));/gi, (all, decimal, hex, name) => {
    if (name) return NAMED[name.toLowerCase()];
    const number = decimal ? Number(decimal) : Number.parseInt(hex, 16);
    return number > 0 && number <= 0x10ffff ? String.fromCodePoint(number) : all;
  });
}
