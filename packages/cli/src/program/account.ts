/** Signing in, and the organizations, projects, keys and credits of who is signed in. */
import { Option } from 'commander';
import type { Registration } from './registration.ts';

const ORG = '--org <org>';
const ORG_HELP = 'an organization, by name or id (default: that of the project in use, else your own)';

export function accountCommands({ program, lazy }: Registration): void {
  program
    .command('login')
    .summary('sign in')
    .description(
      'Sign in to the service in a browser of this machine, or elsewhere with --device. What it gives is kept in ' +
        '~/.config/releap/credentials.json, for this user alone.',
    )
    .option('--device', 'show a code to enter in a browser elsewhere')
    .action(lazy(async () => (await import('../commands/account.ts')).login));
  program
    .command('logout')
    .description('Sign out, and revoke the keys that rlp project use has made.')
    .action(lazy(async () => (await import('../commands/account.ts')).logout));
  program
    .command('whoami')
    .description('Tell who is signed in where, and which project is in use.')
    .action(lazy(async () => (await import('../commands/whoami.ts')).whoami));
  program
    .command('credits')
    .description('Show the balance of an organization, and what has changed it.')
    .argument('[org]', ORG_HELP)
    .option('--limit <number>', 'entries of the ledger, up to 500 (default: 20)')
    .action(lazy(async () => (await import('../commands/credits.ts')).showCredits));
}

export function organizationCommands({ program, lazy }: Registration): void {
  const org = program
    .command('org')
    .summary('organizations and their members')
    .description('Organizations, their members, and who did what in them. ORG is a name or an id.');
  org
    .command('ls', { isDefault: true })
    .description('List your organizations.')
    .action(lazy(async () => (await import('../commands/organizations.ts')).listOrganizations));
  org
    .command('create')
    .description('Make an organization, and print its id. You are its owner.')
    .argument('<name>')
    .action(lazy(async () => (await import('../commands/organizations.ts')).addOrganization));
  org
    .command('rename')
    .description('Rename an organization.')
    .argument('<org>')
    .argument('<name>')
    .action(lazy(async () => (await import('../commands/organizations.ts')).changeName));
  org
    .command('rm')
    .description('Delete organizations with all projects and sandboxes in them.')
    .argument('<org...>')
    .action(lazy(async () => (await import('../commands/organizations.ts')).removeOrganizations));
  org
    .command('quotas')
    .description('Show what an organization may use at a time, and what it uses.')
    .argument('[org]', ORG_HELP)
    .action(lazy(async () => (await import('../commands/quotas.ts')).showQuotas));
  org
    .command('members')
    .description('List the members of an organization.')
    .argument('[org]', ORG_HELP)
    .action(lazy(async () => (await import('../commands/organizations.ts')).listMembers));
  org
    .command('remove-member')
    .description('Remove members from an organization.')
    .argument('<member...>', 'e-mail addresses or ids')
    .option(ORG, ORG_HELP)
    .action(lazy(async () => (await import('../commands/organizations.ts')).removeMembers));
  org
    .command('audit')
    .description('Show who did what in an organization, newest first.')
    .argument('[org]', ORG_HELP)
    .option('--limit <number>', 'how much of it (default: 50)')
    .action(lazy(async () => (await import('../commands/organizations.ts')).showAudit));
}

export function projectCommands({ program, context, finish, lazy }: Registration): void {
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
    .action(lazy(async () => (await import('../commands/projects.ts')).listProjects));
  project
    .command('create')
    .description('Make a project, and print its id.')
    .argument('<name>', 'unique in the organization')
    .option(ORG, ORG_HELP)
    .action(lazy(async () => (await import('../commands/projects.ts')).addProject));
  project
    .command('rm')
    .description('Delete projects with all sandboxes in them.')
    .argument('<project...>')
    .option(ORG, 'look in this organization only')
    .action(lazy(async () => (await import('../commands/projects.ts')).removeProjects));
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
    .action(lazy(async () => (await import('../commands/keys.ts')).listKeys));
  key
    .command('create')
    .description('Make a key, and print it: it cannot be shown again.')
    .argument('[name]', 'default: default, which replaces the key of that name')
    .option('--project <project>', inProject)
    .option(ORG, 'look in this organization only')
    .action(lazy(async () => (await import('../commands/keys.ts')).mintKey));
  key
    .command('rm')
    .description('Revoke keys: they open nothing a second later.')
    .argument('<id...>', 'ids, as rlp key ls shows them')
    .action(lazy(async () => (await import('../commands/keys.ts')).revokeKeys));
}

export function invitationCommands({ program, lazy }: Registration): void {
  const invite = program
    .command('invite')
    .summary('invitations to organizations')
    .description('Invitations to organizations. They are valid for 14 days.');
  invite
    .command('ls', { isDefault: true })
    .description('List the invitations for you, or those that an organization has made.')
    .option(ORG, 'an organization of yours, by name or id')
    .action(lazy(async () => (await import('../commands/invitations.ts')).listInvitations));
  invite
    .command('create')
    .description('Invite a person to an organization. The service sends no mail.')
    .argument('<email>', 'the address that they sign in with')
    .option(ORG, ORG_HELP)
    .addOption(
      new Option('--role <role>', 'what they will be (default: member)').choices(['owner', 'member']),
    )
    .action(lazy(async () => (await import('../commands/invitations.ts')).createInvitation));
  invite
    .command('accept')
    .description('Accept an invitation, and print the id of the organization.')
    .argument('<id>', 'as rlp invite ls shows it')
    .action(lazy(async () => (await import('../commands/invitations.ts')).accept));
  invite
    .command('rm')
    .description('Take invitations of an organization back.')
    .argument('<id...>', 'as rlp invite ls --org shows them')
    .option(ORG, ORG_HELP)
    .action(lazy(async () => (await import('../commands/invitations.ts')).removeInvitations));
}
