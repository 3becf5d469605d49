/** `POST /vms/:id/toolbox/process/execute`: one command, one answer, as the compatibility protocol has it. */
import type { Readable } from 'node:stream';
import { checkEnv } from '@releap/contract';
import type { FastifyInstance, FastifyReply } from 'fastify';
import { type Static, Type } from 'typebox';
import { Budget } from '../budget/budget.ts';
import type { FindGuest } from './find-guest.ts';
import { errorBody, toToolboxError } from './toolbox-error.ts';

/** More output than this is read and thrown away; the answer then says `truncated`. */
export const RESULT_MAX_BYTES = 8 * 1024 * 1024;
/** Results that commands of one sandbox, and of all, are collecting. Beyond it they are truncated, too. */
const RESULTS_MAX_BYTES = { each: 64 * 1024 * 1024, all: 256 * 1024 * 1024 };
/** Without a `timeout`, or with 0. */
const DEFAULT_TIMEOUT_S = 360;
const MAX_TIMEOUT_S = 86_400;

const Body = Type.Object({
  /** A line for `/bin/sh -c`. */
  command: Type.String({ minLength: 1, maxLength: 1024 * 1024 }),
  cwd: Type.Optional(Type.String({ maxLength: 4095 })),
  env: Type.Optional(Type.Record(Type.String(), Type.String())),
  /** As SDKs of the compatible protocol name it; those of `env` take precedence. */
  envs: Type.Optional(Type.Record(Type.String(), Type.String())),
  /** Seconds. */
  timeout: Type.Optional(Type.Number({ minimum: 0, maximum: MAX_TIMEOUT_S })),
  /** Name or uid, optionally `:group`; not part of the compatibility protocol. */
  user: Type.Optional(Type.String({ maxLength: 256 })),
});

interface ExecuteAnswer {
  exitCode: number;
  /** stdout and stderr as they came. */
  result: string;
  truncated?: true;
}

/** Aborts when the client goes before it was answered, or has gone. */
export function abortOnClose(reply: FastifyReply): AbortSignal {
  const controller = new AbortController();
  const onClose = (): void => {
    if (!reply.raw.writableFinished) controller.abort(new Error('the client went away'));
  };
  if (reply.raw.closed) onClose();
  else reply.raw.once('close', onClose);
  return controller.signal;
}

export function registerExecute(app: FastifyInstance, find: FindGuest): void {
  const results = new Budget(RESULTS_MAX_BYTES);
  app.post<{
    Params: { id: string };
    Body: Static<typeof Body>;
  }>(
    '/vms/:id/toolbox/process/execute',
    { schema: { body: Body }, bodyLimit: 4 * 1024 * 1024 },
    async (request, reply) => {
      const { command, cwd, env, envs, timeout, user } = request.body;
      const seconds = timeout === undefined || timeout === 0 ? DEFAULT_TIMEOUT_S : timeout;
      const guest = await find(request.params.id);
      try {
        const running = guest.exec(
          {
            shell: command,
            timeoutMs: Math.ceil(seconds * 1000),
            ...(cwd === undefined ? {} : { cwd }),
            env: checkEnv({ ...envs, ...env }),
            ...(user === undefined ? {} : { user }),
          },
          { signal: abortOnClose(reply) },
        );
        const { id } = request.params;
        const output = new Collector(RESULT_MAX_BYTES, (bytes) => results.take(id, bytes));
        const release = (): void => results.release(id, output.end());
        if (reply.raw.closed) release();
        else reply.raw.once('close', release);
        await Promise.all([output.take(running.stdout), output.take(running.stderr), running.exit]);
        const { exitCode, timedOut } = await running.exit;
        const answer: ExecuteAnswer = {
          exitCode,
          result: output.text(),
          ...(output.truncated ? { truncated: true } : {}),
        };
        if (!timedOut) return answer;
        return await reply.code(408).send({
          ...errorBody(408, `the command was ended: it ran longer than its timeout of ${seconds} s`),
          ...answer,
        });
      } catch (error) {
        throw toToolboxError(error);
      }
    },
  );
}

/** Keeps the first bytes of several streams in the order in which they come. */
class Collector {
  truncated = false;
  readonly #limit: number;
  readonly #reserve: (bytes: number) => number;
  #chunks: Buffer[] = [];
  #size = 0;
  #ended = false;

  /** @param reserve says how many of so many bytes may be kept */
  constructor(limit: number, reserve: (bytes: number) => number) {
    this.#limit = limit;
    this.#reserve = reserve;
  }

  /** Keeps nothing from now on. @returns how many bytes were reserved */
  end(): number {
    this.#ended = true;
    this.#chunks = [];
    return this.#size;
  }

  async take(source: Readable): Promise<void> {
    for await (const chunk of source as AsyncIterable<Buffer>) {
      const wanted = Math.min(chunk.length, this.#limit - this.#size);
      const kept = chunk.subarray(0, this.#ended || wanted === 0 ? 0 : this.#reserve(wanted));
      if (kept.length < chunk.length) this.truncated = true;
      if (kept.length === 0) continue;
      this.#size += kept.length;
      this.#chunks.push(kept);
    }
  }

  text(): string {
    return Buffer.concat(this.#chunks).toString('utf8');
  }
}
