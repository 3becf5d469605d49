/** `rlp expose`, `rlp unexpose` and `rlp preview`: ports of sandboxes at a URL. */
import type { EndpointRecord } from '@releap/contract';
import { exposePort, findSandbox } from '@releap/sdk';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { openBrowser } from '../output/open-browser.ts';
import { age, showTable } from '../output/table.ts';
import { parseDuration } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printJson, show } from '../terminal.ts';

export interface ExposeOptions {
  public?: boolean;
}

export interface PreviewOptions {
  expires?: string;
  open?: boolean;
  token?: boolean;
}

/** Prints the URL. An exposed port gets the visibility of the options. */
export async function expose(
  context: Context,
  vm: string,
  port: string,
  options: ExposeOptions,
): Promise<number> {
  const number = parsePortNumber(port);
  const service = openService(context);
  const { id } = await findSandbox(service, vm);
  const endpoint = await exposePort(service.api, id, number, options.public ?? false);
  return show(context, endpoint, () => endpoint.url);
}

export async function listExposed(context: Context, vm: string): Promise<number> {
  const service = openService(context);
  const { id } = await findSandbox(service, vm);
  const { endpoints } = await service.api.listEndpoints({ params: { id } });
  return showTable(context, endpoints, ['PORT', 'VISIBILITY', 'URL', 'AGE'], (one) => [
    String(one.port),
    one.public ? 'public' : 'private',
    one.url,
    age(one.created_at),
  ]);
}

export async function unexpose(context: Context, vm: string, port: string): Promise<number> {
  const number = parsePortNumber(port);
  const service = openService(context);
  const { id } = await findSandbox(service, vm);
  const { endpoints } = await service.api.listEndpoints({ params: { id } });
  const endpoint = endpoints.find((one: EndpointRecord) => one.port === number);
  if (endpoint === undefined) throw new CliError(`port ${number} of ${vm} is not exposed`);
  await service.api.deleteEndpoint({ params: { id, endpoint_id: endpoint.id } });
  return show(context, { id: endpoint.id, deleted: true }, () => endpoint.id);
}

/** Opens the signed URL in a browser, or prints it. */
export async function preview(
  context: Context,
  vm: string,
  port: string,
  options: PreviewOptions,
): Promise<number> {
  const number = parsePortNumber(port);
  const expiresMs = options.expires === undefined ? undefined : parseDuration('--expires', options.expires);
  const service = openService(context);
  const { id } = await findSandbox(service, vm);
  const link = await service.api.createPreviewLink({
    params: { id },
    body: {
      port: number,
      expires_in_s: expiresMs === undefined ? undefined : Math.max(1, Math.round(expiresMs / 1000)),
    },
  });
  if (context.options.json) printJson(context, link);
  else if (options.token) print(context, link.token);
  else if (options.open === false || !openBrowser(context, link.signed_url)) print(context, link.signed_url);
  else print(context, link.url);
  return EXIT.ok;
}

function parsePortNumber(text: string): number {
  const port = Number(text);
  if (!/^\d{1,5}$/.test(text) || port < 1 || port > 65_535)
    throw usageError(`a port is a number from 1 to 65535, but it was ${JSON.stringify(text)}`);
  return port;
}
