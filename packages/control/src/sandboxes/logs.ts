/** `/logs` and `/entrypoint-logs`, streamed from the sandbox's host and never stored in the database. */
import type { Readable } from 'node:stream';
import {
  badGateway,
  notFound,
  operations,
  quote,
  SANDBOX_STATUS_FACTS,
  sandboxNotFound,
} from '@releap/contract';
import type { SandboxStatus } from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import type { FastifyReply } from 'fastify';
import { Pool, type Dispatcher } from 'undici';
import type { DataTokens } from '../credentials/data-tokens.ts';
import type { Planes } from '../http/planes.ts';
import { readSandboxId } from './change.ts';
import { REACHABLE } from './queries.ts';

const WHERE = statement<{
  id: string;
  status: SandboxStatus;
  runner_id: string | null;
  data_url: string | null;
}>(
  'sandbox-where',
  `select s.id, s.status, s.runner_id, r.data_url
     from sandboxes s left join runners r on r.id = s.runner_id where s.id = $1 and ${REACHABLE('$2', '$3', 's')}`,
);

const ANSWER_MS = 10_000;
const SILENCE_MS = 30_000;
/** Most hosts with open connections: a restarted runner may listen on another port. */
const POOLS = 256;

/** A client of the runners' data servers. */
export interface HostClient extends AsyncDisposable {
  get(
    dataUrl: string,
    path: string,
    options: { token: string; follow: boolean; signal: AbortSignal },
  ): Promise<Dispatcher.ResponseData>;
  close(): Promise<void>;
}

export function createHostClient(): HostClient {
  const pools = new Map<string, Pool>();
  const poolFor = (dataUrl: string): Pool => {
    const known = pools.get(dataUrl);
    if (known !== undefined) {
      // Least recently used first.
      pools.delete(dataUrl);
      pools.set(dataUrl, known);
      return known;
    }
    const [oldest] = pools;
    if (pools.size >= POOLS && oldest !== undefined) {
      pools.delete(oldest[0]);
      // Responses in progress end first.
      void oldest[1].close();
    }
    // Bounded by the clients' connections. With a limit here, a few clients that follow logs would block all other reads
    // from the host, and a request that waits for a connection has no deadline.
    const pool = dataUrl.startsWith('unix:')
      ? new Pool('http://runner', { socketPath: dataUrl.slice('unix:'.length), connections: null })
      : new Pool(new URL(dataUrl).origin, { connections: null });
    pools.set(dataUrl, pool);
    return pool;
  };
  const close = async (): Promise<void> => {
    await Promise.all([...pools.values()].map((pool) => pool.destroy()));
    pools.clear();
  };
  return {
    get: (dataUrl, path, { token, follow, signal }) =>
      poolFor(dataUrl).request({
        method: 'GET',
        path,
        headers: { authorization: `Bearer ${token}` },
        headersTimeout: ANSWER_MS,
        // A client that follows may wait for the next line without a time limit.
        bodyTimeout: follow ? 0 : SILENCE_MS,
        signal,
      }),
    close,
    [Symbol.asyncDispose]: close,
  };
}

export function logRoutes(
  { workload }: Planes,
  { database, hosts, dataTokens }: { database: Database; hosts: HostClient; dataTokens: DataTokens },
): void {
  const serve = async (
    kind: 'console' | 'entrypoint',
    shownId: string,
    projectId: string,
    follow: boolean,
    signal: AbortSignal,
    reply: FastifyReply,
  ): Promise<Readable> => {
    const { uuid, region } = readSandboxId(shownId);
    const row = await queryOne(database.pool, WHERE, [uuid, projectId, region]);
    if (row === undefined) throw sandboxNotFound(shownId);
    const facts = SANDBOX_STATUS_FACTS[row.status];
    if (row.runner_id === null || row.data_url === null) {
      throw notFound(
        facts.terminal
          ? `sandbox ${quote(shownId)} is ${row.status} and has no ${kind} log`
          : `sandbox ${quote(shownId)} is ${row.status} and not yet placed on a host`,
      );
    }
    const { token } = await dataTokens.issue(row.runner_id, row.id);
    let answer: Dispatcher.ResponseData;
    try {
      answer = await hosts.get(row.data_url, `/vms/${row.id}/logs/${kind}${follow ? '?follow=1' : ''}`, {
        token,
        follow,
        signal,
      });
    } catch (error) {
      throw Object.assign(badGateway(`the host of sandbox ${quote(shownId)} did not answer`), {
        cause: error,
      });
    }
    if (answer.statusCode === 200) {
      reply.header('x-content-type-options', 'nosniff').header('cache-control', 'no-store');
      return answer.body;
    }
    await answer.body.dump().catch(() => undefined);
    if (answer.statusCode === 404)
      throw notFound(`sandbox ${quote(shownId)} is ${row.status} and has no ${kind} log`);
    throw badGateway(`the host of sandbox ${quote(shownId)} answered ${answer.statusCode}`);
  };

  workload.operation(operations.getConsoleLog, ({ params, query, principal, reply, abortSignal }) =>
    serve('console', params.id, principal.projectId, query.follow ?? false, abortSignal(), reply),
  );
  workload.operation(operations.getEntrypointLog, ({ params, query, principal, reply, abortSignal }) =>
    serve('entrypoint', params.id, principal.projectId, query.follow ?? false, abortSignal(), reply),
  );
}
