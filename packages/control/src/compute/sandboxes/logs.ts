/** `/logs` and `/entrypoint-logs`, streamed from the sandbox's host and never stored in the database. */
import type { Readable } from 'node:stream';
import { notFound, operations, quote, SANDBOX_STATUS_FACTS } from '@releap/contract';
import type { Database } from '@releap/database';
import type { FastifyReply } from 'fastify';
import type { Planes } from '../../platform/http/planes.ts';
import { logHeaders, type HostClient } from '../../fleet/runners/host-client.ts';
import { hostOf } from './host-of.ts';

export function logRoutes(
  { workload }: Planes,
  { database, hosts }: { database: Database; hosts: HostClient },
): void {
  const serve = async (
    kind: 'console' | 'entrypoint',
    shownId: string,
    projectId: string,
    follow: boolean,
    signal: AbortSignal,
    reply: FastifyReply,
  ): Promise<Readable> => {
    const row = await hostOf(database, shownId, projectId);
    const facts = SANDBOX_STATUS_FACTS[row.status];
    const shown = `sandbox ${quote(shownId)}`;
    if (row.runner_id === null || row.data_url === null) {
      throw notFound(
        facts.terminal
          ? `${shown} is ${row.status} and has no ${kind} log`
          : `${shown} is ${row.status} and not yet placed on a host`,
        'log_not_found',
      );
    }
    const log = await hosts.log({
      runnerId: row.runner_id,
      dataUrl: row.data_url,
      path: `/vms/${row.id}/logs/${kind}`,
      subject: row.id,
      shown,
      follow,
      signal,
    });
    if (log === undefined)
      throw notFound(`${shown} is ${row.status} and has no ${kind} log`, 'log_not_found');
    logHeaders(reply);
    return log;
  };

  workload.operation(operations.getConsoleLog, ({ params, query, principal, reply, abortSignal }) =>
    serve('console', params.id, principal.projectId, query.follow ?? false, abortSignal(), reply),
  );
  workload.operation(operations.getEntrypointLog, ({ params, query, principal, reply, abortSignal }) =>
    serve('entrypoint', params.id, principal.projectId, query.follow ?? false, abortSignal(), reply),
  );
}
