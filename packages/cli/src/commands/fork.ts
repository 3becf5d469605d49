/** `rlp fork VM`: a copy of a persistent sandbox, its memory included. */
import { findSandbox, waitUntilForked } from '@releap/sdk';
import { retryShown, Spinner } from '../output/spinner.ts';
import { waitMs } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, show } from '../terminal.ts';

export interface ForkOptions {
  name?: string;
  /** False with `--no-wait`. */
  wait?: boolean;
  waitTimeout?: string;
}

const WAIT_MS = 5 * 60_000;
/** A fork may respond only after its source has been captured. */
const FORK_MS = 60_000;

export async function fork(context: Context, vm: string, options: ForkOptions): Promise<number> {
  const deadlineMs = waitMs(options, WAIT_MS);
  const service = openService(context);
  const source = await findSandbox(service, vm);
  using spinner = new Spinner(context, `forking ${source.name}`);
  const child = await service.api.forkSandbox(
    { params: { id: source.id }, body: { name: options.name } },
    { retry: retryShown(spinner), timeoutMs: FORK_MS },
  );
  const record =
    options.wait === false
      ? undefined
      : await waitUntilForked(service, child.vm_id, source.status === 'paused' ? 'paused' : 'running', {
          deadlineMs,
          onStatus: spinner.statusOf(child.name),
        });
  spinner.stop();
  return show(context, { ...child, ...record }, () => child.vm_id);
}
