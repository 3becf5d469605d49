/** Lists, finds and awaits snapshots. */
import type { SnapshotRecord } from '@releap/contract';
import { isUuid } from '@releap/contract/ids';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { printable } from '../terminal.ts';
import { pages } from './pages.ts';
import { pause } from './pause.ts';
import { POLL_MS, POLL_SLACK_MS, type Service } from './service.ts';

/** Newest first. */
export function listSnapshots({ api }: Service): AsyncGenerator<SnapshotRecord> {
  return pages(api.listSnapshots, ({ snapshots }) => snapshots);
}

/** The snapshot of that id, else of that name: names are unique in a project. */
export async function findSnapshot(service: Service, text: string): Promise<SnapshotRecord> {
  if (text === '') throw usageError('no snapshot was named');
  if (isUuid(text))
    try {
      return await service.api.getSnapshot({ params: { id: text } });
    } catch (error) {
      // A name may look like an id.
      if (!(error instanceof CliError && error.status === 404)) throw error;
    }
  for await (const snapshot of listSnapshots(service)) if (snapshot.name === text) return snapshot;
  throw new CliError(`no snapshot has the name or id ${JSON.stringify(text)}: rlp snapshot ls lists them`, {
    exitCode: EXIT.notFound,
    status: 404,
  });
}

/** Waits until it is ready; throws, with the reason the service gives, when it has failed. */
export async function waitUntilReady(
  service: Service,
  id: string,
  options: { deadlineMs: number; onStatus: (status: string) => void },
): Promise<SnapshotRecord> {
  const until = performance.now() + options.deadlineMs;
  for (;;) {
    const asked = performance.now();
    const timeout = Math.round(Math.max(0, Math.min(until - asked, POLL_MS)));
    const record = await service.api.getSnapshot(
      { params: { id }, query: { wait: 'ready', timeout_ms: timeout } },
      { timeoutMs: timeout + POLL_SLACK_MS },
    );
    options.onStatus(record.status);
    if (record.status === 'ready') return record;
    if (record.status === 'failed')
      throw new CliError(
        `snapshot ${printable(record.name)} has failed: ${printable(record.error ?? 'no reason was given')}`,
      );
    if (performance.now() >= until)
      throw new CliError(
        `snapshot ${printable(record.name)} is still ${record.status} after ${Math.round(options.deadlineMs / 1000)} s; it continues in the background`,
      );
    // A service that responds at once without a change must not be polled in a busy loop.
    if (performance.now() - asked < 100) await pause(200, service.signal);
  }
}
