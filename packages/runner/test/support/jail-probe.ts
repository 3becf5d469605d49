/** An image process that does nothing but try what such a process must not be able to do. */
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { createInterface } from 'node:readline';
import { dropPrivileges } from '../../src/image/unprivileged.ts';

export interface JailFindings {
  uid: number;
  /** Of its root folder. */
  root: string[];
  /** Of the host's files that it was told, those that it sees. */
  seen: string[];
  /** Codes of the errors; `none` where it could. */
  write: string;
  own: string;
  signal: string;
  spawn: string;
  listen: string;
}

function codeOf(attempt: () => void): string {
  try {
    attempt();
    return 'none';
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? String(error);
  }
}

dropPrivileges();
const input = createInterface({ input: process.stdin });
input.once('line', (line) => {
  const { files, victim } = JSON.parse(line) as { files: string[]; victim: number };
  const server = createServer();
  const say = (listen: string): void => {
    const findings: JailFindings = {
      uid: process.getuid?.() ?? -1,
      root: readdirSync('/').sort(),
      seen: files.filter((file) => existsSync(file)),
      write: codeOf(() => writeFileSync('/packages/new', '')),
      own: codeOf(() => writeFileSync('new', '')),
      signal: codeOf(() => process.kill(victim, 'SIGTERM')),
      spawn: codeOf(() => execFileSync('/node', ['--version'])),
      listen,
    };
    process.stdout.write(`${JSON.stringify(findings)}\n`, () => process.exit(0));
  };
  server.once('error', (error: NodeJS.ErrnoException) => say(error.code ?? ''));
  server.listen(0, '127.0.0.1', () => say('none'));
});
