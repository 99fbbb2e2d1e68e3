// Reads server-sent events, as the HTML standard (section 9.2) writes them, from the body of a reply.

/** The longest event that is accepted, in characters: a faulty server must not fill the memory. */
const MAX_EVENT = 16_000_000;

/**
 * Yields the data of each event of `body`. Comments, such as pings, are skipped.
 * @param {ReadableStream<Uint8Array>} body
 */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      // A carriage return at the end may be half of a line's end.
      const lines = rest.split(rest.endsWith('\r') ? /\r\n|\n|\r(?!$)/ : /\r\n|\n|\r/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === '') {
          if (data.length > 0) yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) {
          data.push(line.slice(line[5] === ' ' ? 6 : 5));
        }
      }
      if (rest.length > MAX_EVENT) throw new Error(`an event is longer than ${MAX_EVENT} characters`);
    }
  } finally {
    reader.cancel().catch(() => {}); // the reader of the events left early, or the stream is broken
  }
}
