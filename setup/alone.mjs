/** One set-up at a time in one folder: `npm start` and `npm test` may be started concurrently. */
import { spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { say, SetupError } from './command.mjs';

const HELD_ELSEWHERE = 75;
const PATIENCE_SECONDS = 3600;

/**
 * flock(1) locks the open file that it inherits from us, and the lock stays with our descriptor. The kernel
 * takes it back when this process dies.
 */
function flock(fd, seconds) {
  const args = [
    '--exclusive',
    '--timeout',
    String(seconds),
    '--conflict-exit-code',
    String(HELD_ELSEWHERE),
    '3',
  ];
  const tool = spawn('flock', args, { stdio: ['ignore', 'ignore', 'inherit', fd] });
  return new Promise((resolve, reject) => {
    tool.once('error', () =>
      reject(new SetupError('flock is missing: install the Debian package util-linux')),
    );
    tool.once('exit', (code) => resolve(code));
  });
}

/** Runs `action` while no other process runs one with the same lock file. */
export async function alone(lockFile, action) {
  const fd = openSync(lockFile, 'a', 0o644);
  try {
    let code = await flock(fd, 0);
    if (code === HELD_ELSEWHERE) {
      say('another set-up works in this folder; waiting for it');
      code = await flock(fd, PATIENCE_SECONDS);
    }
    if (code !== 0) throw new SetupError(`cannot lock ${lockFile}`);
    return await action();
  } finally {
    closeSync(fd);
  }
}
