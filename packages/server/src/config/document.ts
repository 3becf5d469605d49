import { allowed } from './allowed.ts';
import { type Variable, VARIABLES } from './variables.ts';

/** `docs/configuration.md`, from the table that the server itself reads. */
export function configurationDocument(): string {
  const groups = new Map<string, string[]>();
  const all: [string, Variable][] = Object.entries(VARIABLES);
  for (const [name, variable] of all) {
    const unit = variable.unit === undefined ? '' : ` (${variable.unit})`;
    const row = `| \`${name}\` | ${defaultOf(variable)}${unit} | ${allowed(variable)} | ${variable.description} |`;
    groups.set(variable.group, [...(groups.get(variable.group) ?? []), row.replaceAll('\n', ' ')]);
  }
  const sections = [...groups].map(
    ([title, rows]) =>
      `## ${title}\n\n| variable | default | allowed | what it is |\n|---|---|---|---|\n${rows.join('\n')}\n`,
  );
  return `# Configuration

<!-- Made by \`npm run docs:configuration\` from packages/server/src/config/variables.ts. Do not edit. -->

The server is configured by environment variables; an empty one counts as absent. A runner reads those that are absent from
\`$RELEAP_HOME/runner.env\`, lines \`NAME=VALUE\` that \`releap join\` writes ([hosts.md](hosts.md)). Values that are not allowed
stop the start, all named at once. None is needed: \`npm start\` runs the whole service with the defaults.

\`releap all\` (the default) runs every part on one machine. The roles \`control\`, \`runner\` and \`gateway\` run one part
each, for many machines: give the control plane \`DATABASE_URL\`, runners and gateways \`RELEAP_CONTROL_URL\`, a
gateway \`RELEAP_GATEWAY_TOKEN\`, and a machine that becomes a runner \`RELEAP_JOIN_TOKEN\` ([security.md](security.md)).

${sections.join('\n')}`;
}

function defaultOf(variable: Variable): string {
  if (variable.defaultText !== undefined) return variable.defaultText;
  if (variable.default === undefined) return 'none';
  return `\`${String(variable.default)}\``;
}
