/** Functions: waits until a version can serve. */
import type { FunctionVersionRecord } from '@releap/contract';
import { CliError } from '../cli-error.ts';
import { printable } from '../terminal.ts';
import { pages } from './pages.ts';
import { pause } from './pause.ts';
import type { Service } from './service.ts';

const POLL_MS = 500;

/** Newest first. */
function functionVersions({ api }: Service, name: string): AsyncGenerator<FunctionVersionRecord> {
  return pages(
    ({ query }) => api.listFunctionVersions({ params: { name }, query }),
    ({ versions }) => versions,
  );
}

/** @throws CliError when there is no such version any more */
async function readVersion(service: Service, name: string, version: number): Promise<FunctionVersionRecord> {
  for await (const one of functionVersions(service, name)) if (one.version === version) return one;
  throw new CliError(`function ${name} has no version ${version} any more`);
}

/** @throws CliError when it cannot serve, with the reason, or after the deadline */
export async function waitForVersion(
  service: Service,
  name: string,
  version: number,
  options: { deadlineMs: number; onState: (state: string) => void },
): Promise<FunctionVersionRecord> {
  const until = performance.now() + options.deadlineMs;
  for (;;) {
    const record = await readVersion(service, name, version);
    const { template_state: state, template_error: reason } = record;
    options.onState(state);
    if (state === 'published') return record;
    if (state === 'failed') {
      const lines = (reason ?? 'no reason was given').split('\n').map(printable).join('\n');
      throw new CliError(`version ${version} of ${name} cannot serve: ${lines}`);
    }
    if (performance.now() > until)
      throw new CliError(
        `version ${version} of ${name} is still ${state} after ${Math.round(options.deadlineMs / 1000)} s; it continues in the background`,
      );
    await pause(POLL_MS, service.signal);
  }
}
