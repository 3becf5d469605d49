/** Signing in, and the organizations, projects, keys and credits of who is signed in. */
import { Option } from 'commander';
import type { Registration } from './registration.ts';

const ORG = '--org <org>';
const ORG_HELP = 'an organization, by name or id (default: that of the project in use, else your own)';

export function accountCommands({ program, context, finish }: Registration): void {
  program
    .command('login')
    .summary('sign in')
    .description(
      'Sign in to the service in a browser of this machine, or elsewhere with --device. What it gives is kept in ' +
        '~/.config/releap/credentials.json, for this user alone.',
    )
    .option('--device', 'show a code to enter in a browser elsewhere')
    .action(async (options) => {
      const { login } = await import('../commands/account.ts');
      await finish(login(context(), options));
    });
  program
    .command('logout')
    .description('Sign out, and revoke the keys that rlp project use has made.')
    .action(async () => {
      const { logout } = await import('../commands/account.ts');
      await finish(logout(context()));
    });
  program
    .command('whoami')
    .description('Tell who is signed in where, and which project is in use.')
    .action(async () => {
      const { whoami } = await import('../commands/whoami.ts');
      await finish(whoami(context()));
    });
  program
    .command('credits')
    .description('Show the balance of an organization, and what has changed it.')
    .argument('[org]', ORG_HELP)
    .option('--limit <number>', 'entries of the ledger, up to 500 (default: 20)')
    .action(async (org: string | undefined, options) => {
      const { showCredits } = await import('../commands/credits.ts');
      await finish(showCredits(context(), org, options));
    });
}

export function organizationCommands({ program, context, finish }: Registration): void {
  const org = program
    .command('org')
    .summary('organizations and their members')
    .description('Organizations, their members, and who did what in them. ORG is a name or an id.');
  org
    .command('ls', { isDefault: true })
    .description('List your organizations.')
    .action(async () => {
      const { listOrganizations } = await import('../commands/organizations.ts');
      await finish(listOrganizations(context()));
    });
  org
    .command('create')
    .description('Make an organization, and print its id. You are its owner.')
    .argument('<name>')
    .action(async (name: string) => {
      const { addOrganization } = await import('../commands/organizations.ts');
      await finish(addOrganization(context(), name));
    });
  org
    .command('rename')
    .description('Rename an organization.')
    .argument('<org>')
    .argument('<name>')
    .action(async (text: string, name: string) => {
      const { changeName } = await import('../commands/organizations.ts');
      await finish(changeName(context(), text, name));
    });
  org
    .command('rm')
    .description('Delete organizations with all projects and sandboxes in them.')
    .argument('<org...>')
    .action(async (orgs: string[]) => {
      const { removeOrganizations } = await import('../commands/organizations.ts');
      await finish(removeOrganizations(context(), orgs));
    });
  org
    .command('quotas')
    .description('Show what an organization may use at a time, and what it uses.')
    .argument('[org]', ORG_HELP)
    .action(async (text: string | undefined) => {
      const { showQuotas } = await import('../commands/quotas.ts');
      await finish(showQuotas(context(), text));
    });
  org
    .command('members')
    .description('List the members of an organization.')
    .argument('[org]', ORG_HELP)
    .action(async (text: string | undefined) => {
      const { listMembers } = await import('../commands/organizations.ts');
      await finish(listMembers(context(), text));
    });
  org
    .command('remove-member')
    .description('Remove members from an organization.')
    .argument('<member...>', 'e-mail addresses or ids')
    .option(ORG, ORG_HELP)
    .action(async (members: string[], options) => {
      const { removeMembers } = await import('../commands/organizations.ts');
      await finish(removeMembers(context(), members, options));
    });
  org
    .command('audit')
    .description('Show who did what in an organization, newest first.')
    .argument('[org]', ORG_HELP)
    .option('--limit <number>', 'how much of it (default: 50)')
    .action(async (text: string | undefined, options) => {
      const { showAudit } = await import('../commands/organizations.ts');
      await finish(showAudit(context(), text, options));
    });
}

export function projectCommands({ program, context, finish }: Registration): void {
  const project = program
    .command('project')
    .summary('projects, and which of them is in use')
    .description(
      'Projects, which hold sandboxes, images, secrets and keys. PROJECT is a name or an id. rlp project use selects ' +
        'the one that run, ps and similar commands use.',
    );
  project
    .command('ls', { isDefault: true })
    .description('List projects.')
    .option(ORG, 'of this organization only, by name or id')
    .action(async (options) => {
      const { listProjects } = await import('../commands/projects.ts');
      await finish(listProjects(context(), options));
    });
  project
    .command('create')
    .description('Make a project, and print its id.')
    .argument('<name>', 'unique in the organization')
    .option(ORG, ORG_HELP)
    .action(async (name: string, options) => {
      const { addProject } = await import('../commands/projects.ts');
      await finish(addProject(context(), name, options));
    });
  project
    .command('rm')
    .description('Delete projects with all sandboxes in them.')
    .argument('<project...>')
    .option(ORG, 'look in this organization only')
    .action(async (projects: string[], options) => {
      const { removeProjects } = await import('../commands/projects.ts');
      await finish(removeProjects(context(), projects, options));
    });
  project
    .command('use')
    .description(
      'Let commands on sandboxes work in a project: make a key for this machine, and keep it with the sign-in. ' +
        '--api-key and RELEAP_API_KEY still win.',
    )
    .argument('[project]')
    .option(ORG, 'look in this organization only')
    .option('--none', 'use none: commands go to the server of this machine again')
    .action(async (text: string | undefined, options: { org?: string; none?: boolean }) => {
      const { useNoProject, useProject } = await import('../commands/projects.ts');
      const { usageError } = await import('../cli-error.ts');
      if ((text === undefined) === (options.none !== true))
        throw usageError('name one project, or say --none');
      await finish(text === undefined ? useNoProject(context()) : useProject(context(), text, options));
    });

  const key = program
    .command('key')
    .summary('API keys of a project')
    .description('API keys, with which programs work in a project.');
  const inProject = 'a project, by name or id (default: the one in use)';
  key
    .command('ls', { isDefault: true })
    .description('List the keys of a project, newest first.')
    .option('--project <project>', inProject)
    .option(ORG, 'look in this organization only')
    .option('--revoked', 'revoked ones too')
    .action(async (options) => {
      const { listKeys } = await import('../commands/keys.ts');
      await finish(listKeys(context(), options));
    });
  key
    .command('create')
    .description('Make a key, and print it: it cannot be shown again.')
    .argument('[name]', 'default: default, which replaces the key of that name')
    .option('--project <project>', inProject)
    .option(ORG, 'look in this organization only')
    .action(async (name: string | undefined, options) => {
      const { mintKey } = await import('../commands/keys.ts');
      await finish(mintKey(context(), name, options));
    });
  key
    .command('rm')
    .description('Revoke keys: they open nothing a second later.')
    .argument('<id...>', 'ids, as rlp key ls shows them')
    .action(async (ids: string[]) => {
      const { revokeKeys } = await import('../commands/keys.ts');
      await finish(revokeKeys(context(), ids));
    });
}

export function invitationCommands({ program, context, finish }: Registration): void {
  const invite = program
    .command('invite')
    .summary('invitations to organizations')
    .description('Invitations to organizations. They are valid for 14 days.');
  invite
    .command('ls', { isDefault: true })
    .description('List the invitations for you, or those that an organization has made.')
    .option(ORG, 'an organization of yours, by name or id')
    .action(async (options) => {
      const { listInvitations } = await import('../commands/invitations.ts');
      await finish(listInvitations(context(), options));
    });
  invite
    .command('create')
    .description('Invite a person to an organization. The service sends no mail.')
    .argument('<email>', 'the address that they sign in with')
    .option(ORG, ORG_HELP)
    .addOption(
      new Option('--role <role>', 'what they will be (default: member)').choices(['owner', 'member']),
    )
    .action(async (email: string, options) => {
      const { createInvitation } = await import('../commands/invitations.ts');
      await finish(createInvitation(context(), email, options));
    });
  invite
    .command('accept')
    .description('Accept an invitation, and print the id of the organization.')
    .argument('<id>', 'as rlp invite ls shows it')
    .action(async (id: string) => {
      const { accept } = await import('../commands/invitations.ts');
      await finish(accept(context(), id));
    });
  invite
    .command('rm')
    .description('Take invitations of an organization back.')
    .argument('<id...>', 'as rlp invite ls --org shows them')
    .option(ORG, ORG_HELP)
    .action(async (ids: string[], options) => {
      const { removeInvitations } = await import('../commands/invitations.ts');
      await finish(removeInvitations(context(), ids, options));
    });
}
