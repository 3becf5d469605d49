/** The `rlp` process. */
import { runCli } from './run-cli.ts';

const stopping = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const) {
  process.on(name, () => {
    // The first signal stops gracefully; the second at once.
    if (stopping.signal.aborted) process.exit(130);
    stopping.abort(name);
  });
}
// `rlp ps | head -1`: a closed pipe is not a failure.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0);
  throw error;
});

const exitCode = await runCli(process.argv.slice(2), process, stopping.signal);
await Promise.all([flushed(process.stdout), flushed(process.stderr)]);
// Open handles (a stdin without end) must not keep the process alive.
process.exit(exitCode);

function flushed(stream: NodeJS.WriteStream): Promise<void> {
  return new Promise((resolve) => {
    stream.write('', () => resolve());
  });
}
