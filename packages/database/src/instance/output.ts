import type { ChildProcess } from 'node:child_process';

const KEPT = 4_000;
const LINE_MAX = 8_000;
const LAST_WORDS_MS = 500;

/** Reads the output of a process line by line, and keeps its end for error messages. */
export function collect(
  child: ChildProcess,
  onLine: (line: string) => void = () => undefined,
): { text(): string } {
  let kept = '';
  for (const stream of [child.stdout, child.stderr]) {
    let rest = '';
    stream?.setEncoding('utf8').on('data', (chunk: string) => {
      kept = (kept + chunk).slice(-KEPT);
      const lines = (rest + chunk).split('\n');
      rest = (lines.pop() ?? '').slice(-LINE_MAX);
      lines.forEach(onLine);
    });
  }
  return { text: () => kept };
}

/** How a process ended: `code 1`, `signal SIGKILL`, or why it could not be started. It is killed at the deadline. */
export function ended(child: ChildProcess, deadlineMs?: number): Promise<string> {
  return new Promise((resolve) => {
    let late = false;
    const timer =
      deadlineMs === undefined
        ? undefined
        : setTimeout(() => {
            late = true;
            child.kill('SIGKILL');
          }, deadlineMs);
    const finish = (how: string): void => {
      clearTimeout(timer);
      resolve(late ? `${how} after its deadline of ${deadlineMs} ms` : how);
    };
    child.once('error', (error) => finish(error.message));
    // Worker processes may outlive the server and keep its pipes open, so wait for its exit, and a moment for its last
    // output.
    child.once('exit', (code, signal) => {
      const how = code === null ? `signal ${signal ?? 'unknown'}` : `code ${code}`;
      const grace = setTimeout(finish, LAST_WORDS_MS, how);
      child.once('close', () => {
        clearTimeout(grace);
        finish(how);
      });
    });
  });
}
