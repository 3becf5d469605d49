/** `POST /fns/:name/spawn`, `POST /fns/:name/map` and `GET /invocations/:id`. */
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import { createHash } from 'node:crypto';
import { buffer } from 'node:stream/consumers';
import {
  badRequest,
  BOUNDS,
  invocationOperations,
  isUuid,
  notFound,
  quote,
  type InvocationRecord,
  type InvocationStatus,
} from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { enqueue } from './enqueue.ts';
import { payloadHeaders } from './payload-headers.ts';

/** Of a body that was sent without one (RFC 9110, section 8.3). */
const UNKNOWN_TYPE = 'application/octet-stream';
const JSON_TYPE = 'application/json';

interface StoredInvocation {
  id: string;
  version: number | null;
  status: InvocationStatus;
  duration_ms: number | null;
  cold: boolean | null;
  error: string | null;
  queued_at: Date;
  finished_at: Date | null;
  result: string | null;
}

/** $1 id, $2 project */
const GET = statement<StoredInvocation>(
  'invocation-get',
  `select id, version, status, duration_ms, cold, error, queued_at, finished_at, result::text as result
     from invocations where id = $1 and project_id = $2`,
);

export function invocationRoutes(
  { workload }: Planes,
  { database, events }: { database: Database; events: EventBus },
): void {
  workload.operation(
    invocationOperations.spawnInvocation,
    async ({ params: { name }, principal: { projectId }, upload, once, request }) => {
      const isRaw = upload?.kind === 'raw';
      const contentType = (isRaw ? upload.contentType : '') || UNKNOWN_TYPE;
      if (contentType.length > BOUNDS.contentTypeChars)
        throw badRequest(
          `the content type has ${contentType.length} characters: at most ${BOUNDS.contentTypeChars} are allowed`,
        );
      const headers = payloadHeaders(request.headers);
      const body = isRaw ? await buffer(upload.stream) : Buffer.alloc(0);
      const content = { contentType, sha256: createHash('sha256').update(body).digest('hex') };
      return await once(content, async (ids) => {
        const id = ids.uuid();
        await enqueue(database.pool, {
          projectId,
          name,
          source: 'spawn',
          payloads: [{ id, contentType, body, ...(headers && { headers }) }],
        });
        events.emit('invocations-pending');
        return { invocation_id: id, status: 'pending' as const };
      });
    },
  );

  workload.operation(
    invocationOperations.mapInvocations,
    async ({ params: { name }, principal: { projectId }, body: { payloads: values }, ids }) => {
      const payloads = values.map((value) => ({
        id: ids.uuid(),
        contentType: JSON_TYPE,
        body: Buffer.from(JSON.stringify(value)),
      }));
      const large = payloads.findIndex(({ body }) => body.length > BOUNDS.invocationPayloadBytes);
      if (large !== -1)
        throw badRequest(
          `payloads[${large}] is too large: at most ${BOUNDS.invocationPayloadBytes} bytes are allowed`,
          'request_too_large',
        );
      await enqueue(database.pool, { projectId, name, source: 'map', payloads });
      events.emit('invocations-pending');
      return { invocation_ids: payloads.map(({ id }) => id), count: payloads.length };
    },
  );

  workload.operation(invocationOperations.getInvocation, async ({ params: { id }, principal, reply }) => {
    const row = isUuid(id) ? await queryOne(database.pool, GET, [id, principal.projectId]) : undefined;
    if (row === undefined) throw notFound(`invocation ${quote(id)} not found`, 'invocation_not_found');
    const { result, ...fields } = row;
    const record: InvocationRecord = {
      ...fields,
      queued_at: fields.queued_at.toISOString(),
      finished_at: fields.finished_at?.toISOString() ?? null,
      done: fields.status !== 'pending' && fields.status !== 'running',
    };
    if (result === null) return record;
    // The result is sent as the handler wrote it: parsed and written again, large integers would be others.
    reply.type(JSON_TYPE);
    return `${JSON.stringify(record).slice(0, -1)},"result":${result}}` as unknown as InvocationRecord;
  });
}
