/**
 * The set-up of what the first sandbox does not need, beside the running service. Plain Node >= 18, no dependencies.
 *
 * It is the whole set-up, in a process of its own with the lowest priority: what is there already takes it no time, and its lock
 * keeps other set-ups out. What it has not made when the service ends, the next start makes.
 */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { say } from './command.mjs';

const SETUP = fileURLToPath(new URL('setup.mjs', import.meta.url));

export class Remainder {
  #child;

  /** @param {string} [program] what runs; default: the set-up */
  constructor(program = SETUP) {
    this.program = program;
  }

  /** @returns {Promise<number | null>} its exit code; null when it was stopped */
  async start() {
    say('making the rest, in the background');
    // A process group of its own, so that `stop` ends its compilers and downloads, too.
    this.#child = spawn('nice', ['-n', '19', 'ionice', '-c', '3', process.execPath, this.program], {
      detached: true,
      stdio: ['ignore', 'inherit', 'inherit'],
    });
    const code = await new Promise((resolve) => {
      this.#child.once('error', () => resolve(-1));
      this.#child.once('exit', resolve);
    });
    this.#child = undefined;
    if (code === 0) say('the set-up is complete');
    // It has said why. A signal is our own.
    else if (code !== null)
      say('the rest of the set-up is tried again at the next start, or now with: npm run setup');
    return code;
  }

  stop() {
    const pid = this.#child?.pid;
    if (pid === undefined) return;
    try {
      process.kill(-pid, 'SIGTERM');
    } catch (error) {
      if (error.code !== 'ESRCH') throw error;
    }
  }
}
