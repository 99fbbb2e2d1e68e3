// A server of girih for tests. `GIRIH_BIN` names the program.
import { spawn } from 'node:child_process';

export const GIRIH = process.env.GIRIH_BIN;

/** The options of a test that needs the program. */
export const options = { skip: GIRIH ? false : 'GIRIH_BIN is not set' };

/** Starts `girih serve MODEL` and resolves to its address and a function that ends it. */
export function serve(model, ...args) {
  const server = spawn(GIRIH, ['serve', model, '--port', '0', ...args]);
  let printed = '';
  return new Promise((resolve, reject) => {
    const read = (bytes) => {
      printed += bytes;
      const address = printed.match(/http:\/\/[\d.]+:\d+/);
      if (address) resolve({ url: `${address[0]}/`, end: () => server.kill() });
    };
    server.stdout.on('data', read);
    server.stderr.on('data', read);
    server.on('exit', (code) => reject(new Error(`girih serve exited with ${code}: ${printed}`)));
  });
}
