/** Makes docs/api.md from the list of operations and their schemas. Pure. */
import type { TSchema } from 'typebox';
import {
  codesOf,
  DEFAULTS,
  describeSchema,
  ERROR_CODES,
  type ErrorStatus,
  LIMITS,
  listOperations,
  type Operation,
  operationErrors,
  PLATFORM_LIMITS,
  RESERVED_MOUNT_PATHS,
  SANDBOX_STATUS_FACTS,
  SANDBOX_STATUSES,
  SandboxRecord,
  type SchemaNode,
  resources,
  STATUS_MEANINGS,
  type WebSocketDescription,
  type WebSocketMessages,
} from '../src/index.ts';

export function renderApiReference(): string {
  return `${[...head(), ...operationPages(), ...statusPage(), ...errorPage(), ...limitPage()].join('\n')}\n`;
}

function head(): string[] {
  return [
    '# REST API',
    '',
    '<!-- Made by packages/contract/scripts/write-api-reference.ts. Edit the schemas in packages/contract/src instead. -->',
    '',
    'All bodies are JSON unless another type is named. Unknown request fields are ignored; `null` for an optional field',
    'means that it is absent. Times are RFC 3339. The same description for machines is at `GET /openapi.json`:',
    '[clients.md](clients.md) tells how clients are generated from it.',
    '',
    'Every call wants `Authorization: Bearer <API key>`, except those marked *signed in* and *public*. A key is one',
    "project's: ids of other projects are answered exactly like ids that do not exist. What is marked *signed in* wants a",
    "user's OIDC access token instead: see [authentication.md](authentication.md).",
    '',
    'Sandbox ids look like `<region>-<26 letters and digits>`; a bare UUID is accepted in their place. All other ids are',
    'UUIDs.',
    '',
    'What happens inside a sandbox (commands, files) is described in [toolbox.md](toolbox.md).',
    '',
  ];
}

function operationPages(): string[] {
  const lines: string[] = [];
  for (const [tag, about] of resources.flatMap(({ tags }) => Object.entries(tags))) {
    lines.push(`## ${tag}`, '', about, '');
    for (const [, operation] of listOperations())
      if (operation.tag === tag) lines.push(...operationPage(operation));
  }
  return lines;
}

const MARKS = {
  workload: '',
  sandbox: ' (*API key or access token*)',
  management: ' (*signed in*)',
  public: ' (*public*)',
  operator: ' (*operator*)',
  gateway: ' (*gateway*)',
  runner: ' (*runner*)',
} as const;

function operationPage(operation: Operation): string[] {
  const { status, response } = operation.success;
  const lines = [`### ${operation.method} ${operation.path}`, ''];
  lines.push(`${operation.summary}${MARKS[operation.security]}.`, '');
  if (operation.description) lines.push(operation.description, '');
  if (operation.query) lines.push('Query parameters:', '', ...fieldTable(operation.query, true));
  if (operation.consumes)
    lines.push(`The body is ${operation.consumes.map((type) => `\`${type}\``).join(' or ')}.`, '');
  if (operation.body && operation.consumes?.includes('application/json') !== false)
    lines.push('Body:', '', ...fieldTable(operation.body, true));
  if (operation.form) lines.push('Parts of the form:', '', ...fieldTable(operation.form, true));
  if (operation.websocket !== undefined) lines.push(...webSocketTable(operation.websocket));
  if (operation.idempotent === true)
    lines.push('May be repeated under an [`Idempotency-Key`](billing.md#repeating-a-request).', '');
  lines.push(`Answers ${status}: ${response.description}`, '');
  if (response.contentType) lines.push(`The body is \`${response.contentType}\`.`, '');
  else if (response.schema) lines.push(...fieldTable(response.schema, false));
  lines.push('| Status | When | Codes |', '|---|---|---|');
  for (const [error, meaning, codes] of operationErrors(operation))
    lines.push(`| ${error} | ${cell(meaning)} | ${codes.map((code) => `\`${code}\``).join(', ')} |`);
  lines.push('');
  return lines;
}

function webSocketTable({ when, client, server, closes }: WebSocketDescription): string[] {
  const messages = ({ text, binary }: WebSocketMessages): string[] => [
    ...(text === undefined ? [] : [`JSON as text: ${kindsOf(text)}`]),
    ...(binary === undefined ? [] : [`binary: ${binary}`]),
  ];
  const row = (who: string, what: string[]): string => `| ${who} | ${cell(what.join('; ') || 'nothing')} |`;
  return [
    `Messages of the WebSocket${when === undefined ? '' : `, with \`${when}\``}; \`GET /openapi.json\` has their schemas in \`x-websocket\`:`,
    '',
    '| From | Messages |',
    '|---|---|',
    row('client', messages(client)),
    row('server', messages(server)),
    ...Object.entries(closes).map(([code, meaning]) => `| close ${code} | ${cell(meaning)} |`),
    '',
  ];
}

/** The types of the messages, or the fields of the only one. */
function kindsOf(schema: SchemaNode): string {
  const types = (schema.anyOf ?? []).flatMap((one) => one.properties?.['type']?.const ?? []);
  const names =
    types.length > 0
      ? types.map((type) => `type: ${JSON.stringify(type)}`)
      : Object.keys(schema.properties ?? {});
  return names.map((name) => `\`${name}\``).join(', ');
}

/** One row a field; the fields of nested objects follow theirs as `outer.inner` and `outer[].inner`. */
function fieldTable(schema: TSchema, request: boolean): string[] {
  const node = schema as SchemaNode;
  const array = node.type === 'array';
  const rows = fieldRows(array ? (node.items ?? {}) : node, '', request);
  if (rows.length === 0) return [];
  return [
    ...(array ? ['An array of:', ''] : []),
    request ? '| Field | Must be | Default | |' : '| Field | Is | |',
    request ? '|---|---|---|---|' : '|---|---|---|',
    ...rows,
    '',
  ];
}

function fieldRows(node: SchemaNode, prefix: string, request: boolean): string[] {
  return Object.entries(node.properties ?? {}).flatMap(([key, child]) => {
    const name = `${prefix}${key}`;
    const needed = node.required?.includes(key) ?? false;
    const standard = needed
      ? '*required*'
      : child.default === undefined
        ? ''
        : `\`${JSON.stringify(child.default)}\``;
    const note = cell(`${child.description ?? ''}${request || needed ? '' : ' May be absent.'}`.trim());
    const what = cell(describeSchema(child));
    const row = request
      ? `| \`${name}\` | ${what} | ${standard} | ${note} |`
      : `| \`${name}\` | ${what} | ${note} |`;
    if (child.items === (SandboxRecord as SchemaNode))
      return [`| \`${name}\` | an array | As \`GET /vms/:id\` shows them. |`];
    const inner = child.type === 'array' ? fieldRows(child.items ?? {}, `${name}[].`, request) : [];
    const below = child.type === 'object' ? fieldRows(child, `${name}.`, request) : [];
    return [row, ...inner, ...below];
  });
}

function statusPage(): string[] {
  const yes = (fact: boolean): string => (fact ? 'yes' : '');
  const rows = SANDBOX_STATUSES.map((status) => {
    const facts = SANDBOX_STATUS_FACTS[status];
    return `| \`${status}\` | ${yes(facts.transient)} | ${yes(facts.live)} | ${yes(facts.endsWait)} | ${yes(facts.endsWaitExact)} |`;
  });
  return [
    '## Statuses of a sandbox',
    '',
    'A passing status is left without a request. A delete tears a live sandbox down first; others are deleted at once.',
    '',
    '| Status | Passing | Live | Ends `wait` | Ends `wait_exact` |',
    '|---|---|---|---|---|',
    ...rows,
    '',
  ];
}

function errorPage(): string[] {
  return [
    '## Errors',
    '',
    'Every refusal has the body `{"error": "<sentence>", "code": "<code>", "request_id": "<id>", "retryable": <boolean>}`. Switch on',
    '`code`, show `error`, and log `request_id`: the header `x-request-id` has it too. `retryable` says whether the same request,',
    'unchanged, can succeed later; wait for `Retry-After` where it is sent. A 429 of a create has `message` and `retry_after_secs` beside',
    'it. What the sandbox itself refuses of a toolbox request has only `error`. The facade has the code as `error_code`.',
    '',
    '| Status | Meaning |',
    '|---|---|',
    ...Object.entries(STATUS_MEANINGS).map(([status, meaning]) => `| ${status} | ${cell(meaning)} |`),
    '',
    'A code is never renamed and never means something else; new ones are added, so treat one that you do not know as the first',
    'one of its status.',
    '',
    '| Code | Status | Retryable | Meaning |',
    '|---|---|---|---|',
    ...(Object.keys(STATUS_MEANINGS).map(Number) as ErrorStatus[]).flatMap((status) =>
      codesOf(status).map((code) => {
        const { retryable, meaning } = ERROR_CODES[code];
        return `| \`${code}\` | ${status} | ${retryable ? 'yes' : ''} | ${cell(meaning)} |`;
      }),
    ),
    '',
  ];
}

function limitPage(): string[] {
  const rows: [string, string][] = [
    ['Items a page', `${LIMITS.pageMin} to ${LIMITS.pageMax}, default ${DEFAULTS.pageSize}; clamped`],
    ['Long poll', `${LIMITS.waitMsMin} to ${LIMITS.waitMsMax} ms, default ${DEFAULTS.waitMs}; clamped`],
    ['Volumes a sandbox', String(LIMITS.volumesPerSandbox)],
    ['Object-store mounts a sandbox', String(LIMITS.objectStoreMountsPerSandbox)],
    ['Value of an environment variable', `${LIMITS.envValueBytes / 1024} KiB`],
    ['Burstable: guaranteed cores', `${LIMITS.burstableCpuMin} to ${PLATFORM_LIMITS.burstCpuMax} *`],
    ['Burstable: guaranteed memory', `at most ${PLATFORM_LIMITS.burstMemMib} MiB *`],
    ['Burstable: guaranteed disk', `at most ${PLATFORM_LIMITS.burstScratchMib} MiB *`],
    ['Dedicated: cores', `${LIMITS.dedicatedCpuMin} to ${PLATFORM_LIMITS.dedicatedCpuMax} *, whole`],
    ['Explicit memory is raised to', `${PLATFORM_LIMITS.memMibMin} MiB *`],
    ['Explicit disk is raised to', `${PLATFORM_LIMITS.scratchMibMin} MiB *`],
    ['Explicit Docker disk is raised to', `${PLATFORM_LIMITS.dockerDataMibMin} MiB *`],
    ['Reserved mount paths', RESERVED_MOUNT_PATHS.map((path) => `\`${path}\``).join(', ')],
  ];
  return [
    '## Limits',
    '',
    'Those with a star are defaults that an operator may change.',
    '',
    '| Limit | Value |',
    '|---|---|',
    ...rows.map(([name, value]) => `| ${name} | ${value} |`),
  ];
}

function cell(text: string): string {
  return text.replaceAll('|', '\\|').replaceAll('\n', ' ');
}
