# process-copy.pl PID ADDRESS BYTES
#
# Copies a process's memory in an instant, as fork(2) does: copy on write. The process is made to fork by ptrace(2), and
# the copy never runs: it stands where it was born, for its memory to be read at leisure, and dies with this program.
#
#   says "ready\n"; told "copy\n", says "<pid of the copy>\n"; ends, and the copy with it, when standard input does
#
# ADDRESS and BYTES name the part that counts: QEMU keeps its guest's memory out of forks (MADV_DONTFORK), which is lifted
# before it says "ready". Of the rest of its memory the opposite is made true: nobody reads it in the copy, and each page
# that both have in common is one that the VMM has to copy before it can write to it again. Neither is undone: the VMM
# never forks by itself, and is not allowed to (seccomp).
#
# Of all its threads only the main one is held up, for half a millisecond and what the page tables take. Should this
# program be killed in that very moment (EXITKILL), both die: that is better than a twin of a VMM.
use strict;
use warnings;
use POSIX ();
no warnings 'portable';

use constant {
    SYS_PTRACE => 101, SYS_MADVISE => 28, SYS_CLONE => 56, SYS_WAIT4 => 61,
    CONT => 7, STEP => 9, GETREGS => 12, SETREGS => 13, DETACH => 17, GETEVENTMSG => 0x4201,
    SEIZE => 0x4206, INTERRUPT => 0x4207, GETSIGMASK => 0x420a, SETSIGMASK => 0x420b,
    TRACEFORK => 0x2, EXITKILL => 0x100000, SUSPEND_SECCOMP => 0x200000,
    EVENT_FORK => 1, EVENT_STOP => 128, WALL => 0x40000000, DONTFORK => 10, DOFORK => 11,
};
# Of user_regs_struct (sys/user.h): 27 words.
use constant { WORDS => 27, RAX => 10, ORIG_RAX => 15, RIP => 16 };
my @ARGUMENTS = ( 14, 13, 12, 7, 9, 8 );    # rdi rsi rdx r10 r8 r9

die "this machine is no x86_64\n" unless ( POSIX::uname() )[4] eq 'x86_64';
my ( $pid, $address, $bytes ) = map { $_ + 0 } @ARGV;
my $syscall = find_syscall();
my @others  = other_memory();
my @copies;
# Somebody stands while we work.
setpriority( 0, 0, -10 );
held_up( 0, \&choose_memory );
$| = 1;
print "ready\n";
while ( my $line = <STDIN> ) {
    next unless $line eq "copy\n";
    push @copies, held_up( TRACEFORK | EXITKILL, \&copy );
    print "$copies[-1]\n";
}

# Whoever waits for our end may take the memory that they had for free.
for my $copy (@copies) {
    kill( 'KILL', $copy );
    my $status = "\0" x 4;
    syscall( SYS_WAIT4, $copy + 0, $status, WALL, 0 );
}

# The kernel maps a few functions into every process (vdso(7)); among them is the instruction for a system call.
sub find_syscall {
    my ($vdso) = grep { $_->{name} eq '[vdso]' } mappings() or die "process $pid has no vdso\n";
    open( my $memory, '<:raw', "/proc/$pid/mem" ) or die "cannot read process $pid: $!\n";
    sysseek( $memory, $vdso->{start}, 0 );
    sysread( $memory, my $code, $vdso->{bytes} ) or die "cannot read process $pid: $!\n";
    my $at = index( $code, "\x0f\x05" );
    die "no system call was found in the vdso of process $pid\n" if $at < 0;
    return $vdso->{start} + $at;
}

sub mappings {
    open( my $maps, '<', "/proc/$pid/maps" ) or die "there is no process $pid: $!\n";
    return map {
        /^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ *(.*)$/
          ? { start => hex $1, bytes => hex($2) - hex($1), name => $3 }
          : ()
    } <$maps>;
}

# What lies below the guest's memory and above it, up to where the kernel puts what it needs itself.
sub other_memory {
    my @maps = mappings();
    my ($top) = grep { $_->{start} > $address && $_->{name} =~ /^\[(stack|vvar|vdso)/ } @maps
      or die "process $pid has nothing of the kernel's above its memory\n";
    return ( [ $maps[0]{start}, $address ], [ $address + $bytes, $top->{start} ] );
}

sub choose_memory {
    my ($before) = @_;
    my ($lifted) = call( $before, SYS_MADVISE, $address, $bytes, DOFORK );
    return "its memory cannot be forked (error " . -$lifted . ")" if $lifted != 0;

    # That there is nothing at some places of it is an error to madvise(2), after it has done the rest.
    call( $before, SYS_MADVISE, $_->[0], $_->[1] - $_->[0], DONTFORK ) for @others;
    return;
}

sub copy {
    my ($before) = @_;
    my ( $forked, $copy ) = call( $before, SYS_CLONE, POSIX::SIGCHLD, 0, 0, 0, 0 );
    stopped($copy) if defined $copy;
    return ( $forked < 0 ? "it cannot fork (error " . -$forked . ")" : undef, $copy );
}

# Does something with the process while its main thread stands. What is done says why it failed, if it did, and its
# result.
sub held_up {
    my ( $options, $work ) = @_;
    trace( SEIZE, $pid, 0, $options | SUSPEND_SECCOMP );
    trace( INTERRUPT, $pid, 0, 0 );

    # A signal that has come before is delivered first.
    while ( ( my $status = stopped($pid) ) >> 16 != EVENT_STOP ) { trace( CONT, $pid, 0, $status >> 8 & 0xff ) }
    my $before = registers();
    my $mask   = "\0" x 8;
    trace( GETSIGMASK, $pid, 8, $mask );
    my $all = "\xff" x 8;
    trace( SETSIGMASK, $pid, 8, $all );

    my ( $failure, $result ) = $work->($before);

    # The system call that it was in is begun again, as after a signal that nobody handles (signal(7)).
    my @after = @$before;
    if ( $after[ORIG_RAX] >= 0 && $after[RAX] <= -512 && $after[RAX] >= -516 ) {
        $after[RIP] -= 2;
        $after[RAX] = $after[ORIG_RAX];
    }
    $after[ORIG_RAX] = -1;
    set_registers( \@after );
    trace( SETSIGMASK, $pid, 8,     $mask );
    trace( DETACH,     $pid, 0, 0 );
    die "process $pid: $failure\n" if defined $failure;
    return $result;
}

# Makes the process do one system call. Its result, and the pid of the process that it has made, if any.
sub call {
    my ( $before, $number, @arguments ) = @_;
    my @registers = @$before;
    @registers[@ARGUMENTS] = ( @arguments, (0) x 6 )[ 0 .. 5 ];
    @registers[ RAX, ORIG_RAX, RIP ] = ( $number, -1, $syscall );
    set_registers( \@registers );
    my $made;
    my $signal = 0;
    while (1) {
        trace( STEP, $pid, 0, $signal );
        my $status = stopped($pid);
        last if $status >> 8 == POSIX::SIGTRAP;

        # Whoever stops the process or lets it go on (SIGSTOP cannot be held back) has their way when it is let go.
        $signal = $status >> 8 == POSIX::SIGSTOP ? POSIX::SIGSTOP : 0;
        next if $signal || $status >> 16 == EVENT_STOP;
        die sprintf( "process %d stopped unexpectedly (%x)\n", $pid, $status )
          unless $status >> 8 == ( POSIX::SIGTRAP | EVENT_FORK << 8 );
        my $message = "\0" x 8;
        trace( GETEVENTMSG, $pid, 0, $message );
        $made = unpack( 'q', $message );
    }
    return ( registers()->[RAX], $made );
}

sub registers {
    my $buffer = "\0" x ( 8 * WORDS );
    trace( GETREGS, $pid, 0, $buffer );
    return [ unpack( 'q' . WORDS, $buffer ) ];
}

sub set_registers {
    my $buffer = pack( 'q' . WORDS, @{ $_[0] } );
    trace( SETREGS, $pid, 0, $buffer );
}

# The last argument is used where it stands: the kernel may write into it.
sub trace {
    my $result = syscall( SYS_PTRACE, $_[0] + 0, $_[1] + 0, $_[2] + 0, $_[3] );
    die "ptrace(2) request $_[0] on process $_[1]: $!\n" if $result < 0;
}

sub stopped {
    my ($which) = @_;
    my $status = "\0" x 4;
    syscall( SYS_WAIT4, $which + 0, $status, WALL, 0 ) > 0 or die "wait4(2) for process $which: $!\n";
    my $value = unpack( 'l', $status );
    die sprintf( "process %d ended (%x)\n", $which, $value ) unless ( $value & 0xff ) == 0x7f;
    return $value;
}
