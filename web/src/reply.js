// Runs one reply: reads its chunks into the message, and counts tokens and time.

/**
 * Adds the server's chunks to `reply` and sets its state. `changed` is called after each chunk.
 * @param {import('./conversation.js').Message} reply
 */
export async function run(reply, chunks, signal, changed) {
  const clock = { start: performance.now(), first: null, last: null };
  try {
    for await (const chunk of chunks) {
      read(reply, chunk, clock);
      changed();
    }
    reply.state = 'done';
  } catch (error) {
    reply.state = signal.aborted ? 'stopped' : 'failed';
    if (reply.state === 'failed') reply.error = error.message;
  }
  changed();
}

function read(reply, chunk, clock) {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  const thinking = delta.reasoning_content ?? '';
  const content = delta.content ?? choice?.text ?? ''; // of a completion, a text
  if (thinking) reply.thinking += thinking;
  if (content) reply.content += content;
  for (const part of delta.tool_calls ?? []) addCall(reply.calls, part);
  if (thinking || content || delta.tool_calls?.length) {
    clock.last = performance.now();
    clock.first ??= clock.last;
    reply.counters.first ??= (clock.first - clock.start) / 1000;
  }
  if (choice?.finish_reason) reply.finish = choice.finish_reason;
  if (chunk.usage) count(reply.counters, chunk.usage, clock);
}

/** Adds a piece of a call; the server numbers the calls of a reply from 0. */
function addCall(calls, { index = 0, id, function: { name = '', arguments: text = '' } = {} }) {
  if (index > calls.length) throw new Error(`the server sent call ${index} before call ${calls.length}`);
  if (index === calls.length) calls.push({ id: id ?? `call_${index}`, name: '', arguments: '', result: null });
  calls[index].name += name;
  calls[index].arguments += text;
}

/** A shorter time between the first and the last token says nothing, as tokens may arrive together. */
const MIN_SECONDS = 0.1;

function count(counters, usage, clock) {
  const generated = usage.completion_tokens ?? null;
  if (counters.generated === null) {
    counters.prompt = usage.prompt_tokens ?? null;
    counters.cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  }
  counters.generated = generated === null ? null : generated + (counters.generated ?? 0); // of a reply that was continued
  const seconds = ((clock.last ?? 0) - (clock.first ?? 0)) / 1000;
  // The first token ends the prefill, so the time between tokens is that of the others.
  counters.rate = generated > 1 && seconds >= MIN_SECONDS ? (generated - 1) / seconds : null;
}
