// Shows JSON text with line breaks. Numbers and strings stay as they were written.

/** Deeper text is shown as it is: its indents would grow with the square of the depth. */
const MAX_DEPTH = 64;

/** `text` with two spaces of indent per level, or null if it is not JSON. */
export function indented(text) {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  // Strings, brackets, separators, and the rest: numbers and names.
  const pieces = text.match(/"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{}:,]|[^\s[\]{}:,"]+/g);
  let depth = 0;
  let out = '';
  for (const [index, piece] of pieces.entries()) {
    const next = pieces[index + 1];
    if (piece === '{' || piece === '[') {
      if (++depth > MAX_DEPTH) return text;
      out += piece + (next === '}' || next === ']' ? '' : line(depth));
    } else if (piece === '}' || piece === ']') {
      depth -= 1;
      const opened = pieces[index - 1];
      out += (opened === '{' || opened === '[' ? '' : line(depth)) + piece;
    } else if (piece === ',') {
      out += piece + line(depth);
    } else {
      out += piece === ':' ? ': ' : piece;
    }
  }
  return out;
}

const line = (depth) => `\n${'  '.repeat(depth)}`;
