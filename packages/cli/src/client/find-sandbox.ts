/** From what the user typed (an id, the beginning of one, or a name) to one sandbox. */
import type { SandboxRecord } from '@releap/contract';
import { parseSandboxId } from '@releap/contract/ids';
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { printable } from '../terminal.ts';
import type { Service } from './service.ts';

/** An exact id wins over a name, a name over the beginning of an id. More than one match is an error that lists them. */
export async function findSandbox(service: Service, text: string): Promise<SandboxRecord> {
  if (text === '') throw new CliError('no sandbox was named', { exitCode: EXIT.usage });
  if (parseSandboxId(text) !== null) return service.api.getSandbox({ params: { id: text } });
  const named: SandboxRecord[] = [];
  const begun: SandboxRecord[] = [];
  for await (const sandbox of service.sandboxes()) {
    if (sandbox.status === 'deleted') continue;
    if (sandbox.name === text) named.push(sandbox);
    if (sandbox.id.startsWith(text) || randomPart(sandbox.id).startsWith(text)) begun.push(sandbox);
  }
  const matches = named.length > 0 ? named : begun;
  const [only, ...others] = matches;
  if (only === undefined)
    throw new CliError(`no sandbox has the name or id ${JSON.stringify(text)}: rlp ps lists them`, {
      exitCode: EXIT.notFound,
      status: 404,
    });
  if (others.length > 0) {
    const shown = matches.slice(0, 5).map((one) => `${one.id} (${printable(one.name)})`);
    throw new CliError(
      `${JSON.stringify(text)} means ${matches.length} sandboxes, use more of the id: ${shown.join(', ')}${matches.length > 5 ? ', …' : ''}`,
      { exitCode: EXIT.usage },
    );
  }
  return only;
}

/** The id without its region, which all of them share. */
function randomPart(id: string): string {
  return id.slice(id.lastIndexOf('-') + 1);
}
