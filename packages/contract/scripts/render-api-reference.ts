/** Makes docs/api.md from the list of operations and their schemas. Pure. */
import type { TSchema } from 'typebox';
import {
  DEFAULTS,
  describeSchema,
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
    'means that it is absent. Times are RFC 3339. The same description for machines is at `GET /openapi.json`.',
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
  if (operation.idempotent === true)
    lines.push('May be repeated under an [`Idempotency-Key`](billing.md#repeating-a-request).', '');
  lines.push(`Answers ${status}: ${response.description}`, '');
  if (response.contentType) lines.push(`The body is \`${response.contentType}\`.`, '');
  else if (response.schema) lines.push(...fieldTable(response.schema, false));
  lines.push('| Status | When |', '|---|---|');
  for (const [code, meaning] of operationErrors(operation)) lines.push(`| ${code} | ${cell(meaning)} |`);
  lines.push('');
  return lines;
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
    'Every refusal has the body `{"error": "<sentence>"}`. A 429 of a create has `message` and `retry_after_secs` beside it',
    'and a `Retry-After` header.',
    '',
    '| Status | Meaning |',
    '|---|---|',
    ...Object.entries(STATUS_MEANINGS).map(([status, meaning]) => `| ${status} | ${cell(meaning)} |`),
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
