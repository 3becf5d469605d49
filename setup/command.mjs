/** Child processes and progress lines of the set-up. Plain Node >= 18: nothing is installed yet when this runs. */
import { spawn } from 'node:child_process';
import { constants } from 'node:fs';
import { access } from 'node:fs/promises';
import path from 'node:path';

export class SetupError extends Error {}

/** One line for the user; set-up prints nothing when there is nothing to do. */
export function say(message) {
  process.stderr.write(`\u001b[2mset-up\u001b[0m  ${message}\n`);
}

/** The absolute path of a command, or undefined. Looks where root's tools are, too, regardless of PATH. */
export async function findCommand(name) {
  const folders = [
    ...(process.env.PATH ?? '').split(path.delimiter),
    '/usr/local/go/bin',
    '/usr/sbin',
    '/sbin',
  ];
  for (const folder of folders.filter((folder) => folder !== '')) {
    const file = path.join(folder, name);
    if (
      await access(file, constants.X_OK).then(
        () => true,
        () => false,
      )
    )
      return file;
  }
  return undefined;
}

/**
 * Runs a tool to its end and gives what it printed on stdout. Fails with the end of its output.
 * @param {string} file
 * @param {string[]} args
 * @param {{ cwd?: string, env?: Record<string, string | undefined>, minutes?: number }} [options]
 */
export async function run(file, args, { cwd, env, minutes = 10 } = {}) {
  const child = spawn(file, args, {
    cwd,
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
    signal: AbortSignal.timeout(minutes * 60_000),
    killSignal: 'SIGKILL',
  });
  let out = '';
  let tail = '';
  child.stdout.on('data', (chunk) => {
    out = (out + chunk).slice(-1_000_000);
    tail = (tail + chunk).slice(-4_000);
  });
  child.stderr.on('data', (chunk) => {
    tail = (tail + chunk).slice(-4_000);
  });
  const code = await new Promise((resolve) => {
    child.once('error', (error) => {
      tail += error.name === 'AbortError' ? `\nstopped after ${minutes} minutes` : error.message;
      resolve(-1);
    });
    child.once('close', (code, signal) => resolve(code ?? `signal ${signal}`));
  });
  if (code !== 0) {
    const shown = [path.basename(file), ...args].join(' ').slice(0, 200);
    throw new SetupError(`'${shown}' failed (${code}):\n${tail.trim()}`);
  }
  return out;
}
