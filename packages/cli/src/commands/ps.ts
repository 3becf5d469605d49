/** `rlp ps`: the project's sandboxes, newest first. */
import type { SandboxRecord, SandboxStatus } from '@releap/contract';
import { EXIT } from '../exit-codes.ts';
import { age, table } from '../output/table.ts';
import { openService } from '../service.ts';
import { type Context, print, printJson } from '../terminal.ts';

export interface PsOptions {
  all?: boolean;
  quiet?: boolean;
}

/** What `--all` adds: sandboxes whose processes are gone. */
const ENDED: ReadonlySet<SandboxStatus> = new Set(['stopped', 'failed']);

export async function ps(context: Context, options: PsOptions): Promise<number> {
  const service = openService(context);
  const sandboxes: SandboxRecord[] = [];
  for await (const sandbox of service.sandboxes())
    if (options.all || !ENDED.has(sandbox.status)) sandboxes.push(sandbox);

  if (context.options.json) printJson(context, sandboxes);
  else if (options.quiet) for (const sandbox of sandboxes) print(context, sandbox.id);
  else
    print(
      context,
      table(['ID', 'NAME', 'IMAGE', 'STATUS', 'AGE', 'CPU', 'MEM', 'PORTS'], sandboxes.map(row)),
    );
  return EXIT.ok;
}

function row(sandbox: SandboxRecord): string[] {
  const ports = sandbox.port_map.map(
    (port) => `${sandbox.host_ip ?? ''}:${port.host_port}->${port.vm_port}/${port.proto}`,
  );
  return [
    sandbox.id,
    sandbox.name,
    sandbox.image_ref,
    sandbox.status,
    age(sandbox.created_at),
    String(sandbox.cpu),
    `${sandbox.mem_mib} MiB`,
    ports.join(', '),
  ];
}
