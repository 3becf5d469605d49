import { PassThrough } from 'node:stream';
import type { FastifyInstance, FastifyReply } from 'fastify';
import { Budget } from '../budget/budget.ts';
import type { LogFile } from '../logs/log-file.ts';

/** The two logs of a sandbox: what its kernel and agent print, and what its entrypoint prints. */
export type LogKind = 'console' | 'entrypoint';

export interface LogSource {
  /** All that is kept, or undefined when this machine never ran such a sandbox. */
  read: (vmId: string, kind: LogKind) => Promise<Buffer | undefined>;
  /** The open log of a live sandbox. */
  live: (vmId: string, kind: LogKind) => LogFile | undefined;
}

export interface BuildLogSource {
  /** All that is stored, or undefined when this machine has no log of that job. */
  read: (jobId: string) => Promise<Buffer | undefined>;
  /** The open log of a build that runs. */
  live: (jobId: string) => LogFile | undefined;
}

/** A reader this far behind loses its connection rather than growing the runner's memory. */
const FOLLOW_BACKLOG_MAX_BYTES = 4 * 1024 * 1024;
/** Readers that follow logs of one sandbox, and of all: each may hold a backlog. */
const FOLLOWERS_MAX = { each: 16, all: 64 };

/** `GET /vms/:id/logs/console|entrypoint[?follow=1]`: text/plain; with `follow` until the sandbox ends. */
export function registerLogs(app: FastifyInstance, source: LogSource): void {
  const followers = new Budget(FOLLOWERS_MAX);
  app.get<{ Params: { id: string; kind: string }; Querystring: { follow?: string } }>(
    '/vms/:id/logs/:kind',
    async (request, reply) => {
      const { id, kind } = request.params;
      if (kind !== 'console' && kind !== 'entrypoint') {
        return reply.code(404).send({ error: `no log '${kind}': there are 'console' and 'entrypoint'` });
      }
      return await sendLog(reply, followers, {
        id,
        what: 'sandbox',
        read: () => source.read(id, kind),
        live: source.live(id, kind),
        follow: request.query.follow === '1',
      });
    },
  );
}

/** `GET /builds/:id/logs[?follow=1]`: the same of a build, by the id of its job. */
export function registerBuildLogs(app: FastifyInstance, source: BuildLogSource): void {
  const followers = new Budget(FOLLOWERS_MAX);
  app.get<{ Params: { id: string }; Querystring: { follow?: string } }>(
    '/builds/:id/logs',
    async (request, reply) => {
      const { id } = request.params;
      return await sendLog(reply, followers, {
        id,
        what: 'build',
        read: () => source.read(id),
        live: source.live(id),
        follow: request.query.follow === '1',
      });
    },
  );
}

interface WantedLog {
  id: string;
  what: 'sandbox' | 'build';
  read: () => Promise<Buffer | undefined>;
  live: LogFile | undefined;
  follow: boolean;
}

async function sendLog(
  reply: FastifyReply,
  followers: Budget,
  { id, what, read, live, follow }: WantedLog,
): Promise<FastifyReply> {
  reply.type('text/plain; charset=utf-8');
  if (!follow || !live) {
    await live?.flush();
    const kept = await read();
    if (kept === undefined && !live) {
      return reply
        .code(404)
        .type('application/json')
        .send({ error: `no log of ${what} ${id} here` });
    }
    return reply.send(kept ?? Buffer.alloc(0));
  }
  if (followers.take(id, 1) === 0) {
    return reply
      .code(429)
      .type('application/json')
      .send({
        error: `too many readers follow logs: at most ${FOLLOWERS_MAX.each} of a ${what}, and ${FOLLOWERS_MAX.all} on this host`,
      });
  }
  const stream = new PassThrough();
  stream.once('close', () => followers.release(id, 1));
  const { kept, stop } = await live
    .follow(
      (chunk) => {
        if (stream.writableLength > FOLLOW_BACKLOG_MAX_BYTES) stream.destroy(new Error('reader too slow'));
        else stream.write(chunk);
      },
      () => stream.end(),
    )
    .catch((error: unknown) => {
      stream.destroy();
      throw error;
    });
  stream.once('close', stop);
  stream.write(kept);
  // A log without output must not look like a host without an answer.
  reply.raw.once('pipe', () => reply.raw.flushHeaders());
  return reply.send(stream);
}
