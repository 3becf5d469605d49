/** `/egress/denied`: the host's log of what a sandbox was not allowed to send, in pages. */
import { createHash } from 'node:crypto';
import {
  clampLimit,
  conflict,
  cursorPosition,
  EGRESS_DENIAL_CURSORS,
  EgressDenial,
  type EgressDenialList,
  nextCursor,
  operations,
  quote,
} from '@releap/contract';
import type { Database } from '@releap/database';
import { Type } from 'typebox';
import { Compile } from 'typebox/compile';
import type { Planes } from '../../platform/http/planes.ts';
import { hostDocument, type HostClient } from '../../fleet/runners/host-client.ts';
import { hostOf } from './host-of.ts';

/** What a host may answer, in bytes: it sends a bounded log. */
const ANSWER_MAX_BYTES = 4 * 1024 * 1024;

const Answer = Compile(Type.Object({ denied: Type.Array(EgressDenial) }));

export function deniedEgressRoutes(
  { workload }: Planes,
  { database, hosts }: { database: Database; hosts: HostClient },
): void {
  workload.operation(
    operations.listDeniedEgress,
    async ({ params, query, principal, abortSignal }): Promise<EgressDenialList> => {
      const after = cursorPosition(EGRESS_DENIAL_CURSORS, query.cursor);
      const row = await hostOf(database, params.id, principal.projectId);
      const shown = `sandbox ${quote(params.id)}`;
      const noLog = conflict(
        `${shown} is ${row.status}, and no host has a log of what it was denied`,
        'wrong_state',
      );
      if (row.runner_id === null || row.data_url === null) throw noLog;
      const answer = await hosts.log({
        runnerId: row.runner_id,
        dataUrl: row.data_url,
        path: `/vms/${row.id}/egress/denied`,
        subject: row.id,
        shown,
        follow: false,
        signal: abortSignal(),
      });
      if (answer === undefined) throw noLog;
      const { denied } = await hostDocument(answer, Answer, { maxBytes: ANSWER_MAX_BYTES, shown });
      return page(denied, after, clampLimit(query.limit));
    },
  );
}

interface Position {
  created_at: string;
  id: string;
}

/** Entries are ordered by their last time. One that grows between two pages is on the first page again. */
function page(denied: readonly EgressDenial[], after: Position | null, limit: number): EgressDenialList {
  const placed = denied
    .map((denial) => ({ denial, at: { created_at: denial.last_at, id: idOf(denial) } }))
    .filter(({ at }) => after === null || isBefore(after, at))
    .sort((a, b) => (isBefore(a.at, b.at) ? -1 : 1));
  const sent = placed.slice(0, limit);
  const last = placed.length > limit ? (sent.at(-1)?.at ?? null) : null;
  return {
    denied: sent.map(({ denial }) => denial),
    next_cursor: nextCursor(EGRESS_DENIAL_CURSORS, last),
  };
}

/** Whether `a` is listed before `b`: newer, or with the smaller id. */
function isBefore(a: Position, b: Position): boolean {
  const [atA, atB] = [Date.parse(a.created_at), Date.parse(b.created_at)];
  return atA > atB || (atA === atB && a.id < b.id);
}

/** The same for the same kind of denial in every answer. In the form of a UUID, as cursors need it. */
function idOf({ protocol, address, port, name, reason }: EgressDenial): string {
  const hex = createHash('sha256')
    .update(JSON.stringify([protocol, address, port, name, reason]))
    .digest('hex');
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20, 32)].join(
    '-',
  );
}
