/** `rlp fn ls|show|config|public|rm`. */
import type { FunctionVersionRecord } from '@releap/contract';
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { age, table } from '../output/table.ts';
import { openService } from '../service.ts';
import { type Context, print, printable, printJson, show } from '../terminal.ts';
import { forEachNamed } from './each.ts';
import { type BoundOptions, boundsOf } from './fn-bounds.ts';

export async function listFunctions(context: Context, options: { quiet?: boolean }): Promise<number> {
  const { functions } = await openService(context).api.listFunctions();
  if (context.options.json) printJson(context, functions);
  else if (options.quiet) for (const { name } of functions) print(context, printable(name));
  else
    print(
      context,
      table(
        ['NAME', 'VERSION', 'STATE', 'IMAGE', 'PUBLIC', 'AGE'],
        functions.map((one) => [
          one.name,
          shownVersion(one.current_version, one.latest_version),
          one.template_state,
          one.image_ref,
          one.public ? 'yes' : 'no',
          age(one.created_at),
        ]),
      ),
    );
  return EXIT.ok;
}

/** `v2`, and while a newer one is tried or has failed, `v2 (newest v3)`. */
function shownVersion(current: number, newest: number): string {
  const shown = `v${current}`;
  return current === newest ? shown : `${shown} (newest v${newest})`;
}

/** Newest versions that are shown. */
const VERSIONS = 10;

export async function showFunction(context: Context, name: string): Promise<number> {
  const { api } = openService(context);
  const found = await api.getFunction({ params: { name } });
  const { versions } = await api.listFunctionVersions({ params: { name }, query: { limit: VERSIONS } });
  if (context.options.json) {
    printJson(context, { ...found, versions });
    return EXIT.ok;
  }
  const access = found.requires_token ? 'public, with a token' : 'public';
  print(
    context,
    `${printable(found.name)}, ${found.public ? access : 'not public'}, ${age(found.created_at)} old`,
  );
  print(
    context,
    table(
      [
        '',
        'VERSION',
        'STATE',
        'IMAGE',
        'HANDLER',
        'PORT',
        'SIZE',
        'TIMEOUT',
        'IDLE',
        'REQUESTS',
        'INSTANCES',
        'START',
        'AGE',
      ],
      versions.map((one) => versionRow(one, one.version === found.current_version.version)),
    ),
  );
  for (const { version, template_error: error } of versions)
    if (error !== null) print(context, `v${version}: ${error.split('\n').map(printable).join('\n    ')}`);
  return EXIT.ok;
}

const HANDLER_CHARS = 60;
const shortened = (text: string): string =>
  text.length > HANDLER_CHARS ? `${text.slice(0, HANDLER_CHARS - 1)}…` : text;

function versionRow(one: FunctionVersionRecord, isCurrent: boolean): string[] {
  return [
    isCurrent ? '*' : '',
    `v${one.version}`,
    one.template_state,
    one.image_ref,
    one.handler.length === 0 ? '-' : shortened(one.handler.join(' ')),
    String(one.port),
    `${one.vcpus} vCPU, ${one.mem_mib} MiB`,
    `${one.timeout_s} s`,
    `${one.scaledown_window_s} s`,
    String(one.max_concurrency),
    one.max_instances === null ? '-' : String(one.max_instances),
    one.snapshot_kind,
    age(one.created_at),
  ];
}

export async function configureFunction(
  context: Context,
  name: string,
  options: BoundOptions,
): Promise<number> {
  const body = boundsOf(options);
  if (Object.keys(body).length === 0)
    throw usageError(
      'nothing to change: --timeout, --scaledown, --concurrency and --max-instances change it',
    );
  const config = await openService(context).api.updateFunctionConfig({ params: { name }, body });
  return show(context, config, () => `${name} v${config.version}`);
}

/** Prints the URL, and the token if one was made. */
export async function publishFunction(
  context: Context,
  name: string,
  state: string,
  options: { token?: boolean },
): Promise<number> {
  if (state !== 'on' && state !== 'off')
    throw usageError(`write rlp fn public ${name} on or off, not ${JSON.stringify(state)}`);
  if (state === 'off' && options.token) throw usageError('--token goes with on');
  const service = openService(context);
  const answer = await service.api.setFunctionPublic({
    params: { name },
    body: { enabled: state === 'on', require_token: options.token ?? false },
  });
  const url = `${service.url}${answer.url}`;
  if (context.options.json) printJson(context, { ...answer, url });
  else if (answer.public) {
    print(context, url);
    if (answer.token !== null) print(context, answer.token);
    else if (answer.requires_token)
      context.terminal.stderr.write('rlp: its token stays; for a new one, turn it off and on again\n');
  }
  return EXIT.ok;
}

export async function removeFunctions(context: Context, names: string[]): Promise<number> {
  const { api } = openService(context);
  return await forEachNamed(context, 'function', names, async (name) => {
    await api.deleteFunction({ params: { name } });
    return { status: 'deleted', printed: name };
  });
}
