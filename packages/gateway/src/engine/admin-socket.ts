import { connect } from 'node:net';

/** It answers in less than a millisecond; one that does not is stuck. */
const ANSWER_MS = 1_000;
/** Of one line, below the engine's buffer. */
const LINE_MAX = 16_000;

interface Waiting {
  command: string;
  resolve: (output: string) => void;
  reject: (error: Error) => void;
}

/** HAProxy's runtime API (section 9.3 of its management guide). Commands run in the order of the calls. */
export class AdminSocket {
  readonly #path: string;
  #waiting: Waiting[] = [];
  #running = false;

  constructor(path: string) {
    this.#path = path;
  }

  /**
   * Runs one command. Several that wait share a connection, and then get their joint output.
   * @throws when the engine does not answer
   */
  async run(command: string): Promise<string> {
    const { promise, resolve, reject } = Promise.withResolvers<string>();
    this.#waiting.push({ command, resolve, reject });
    if (!this.#running) void this.#pump();
    return await promise;
  }

  async #pump(): Promise<void> {
    this.#running = true;
    while (this.#waiting.length > 0) {
      const batch = this.#nextBatch();
      try {
        const output = await this.#ask(batch.map(({ command }) => command).join(';'));
        for (const { resolve } of batch) resolve(output);
      } catch (error) {
        for (const { reject } of batch) reject(error as Error);
      }
    }
    this.#running = false;
  }

  /** A command with a payload, or whose output is read, is sent alone. */
  #nextBatch(): Waiting[] {
    const isAlone = ({ command }: Waiting): boolean => command.includes('\n') || command.startsWith('show ');
    let size = 0;
    let count = 0;
    for (const waiting of this.#waiting) {
      size += waiting.command.length + 1;
      if (count > 0 && (isAlone(waiting) || size > LINE_MAX)) break;
      count++;
      if (isAlone(waiting)) break;
    }
    return this.#waiting.splice(0, count);
  }

  #ask(line: string): Promise<string> {
    return new Promise((resolve, reject) => {
      let output = '';
      const socket = connect({ path: this.#path });
      const timer = setTimeout(() => socket.destroy(new Error('the engine does not answer')), ANSWER_MS);
      socket.setEncoding('utf8');
      socket.on('data', (text: string) => (output += text));
      socket.on('error', reject);
      socket.on('close', () => {
        clearTimeout(timer);
        resolve(output);
      });
      socket.write(`${line}\n`);
    });
  }
}
