# Two things that a script runtime cannot ask the kernel for by itself (run with Debian's essential perl).
#
#   memory.pl compact SOURCE TARGET   copies a file, leaving out pages that are zero
#   memory.pl own SOURCE TARGET       copies a file for one owner who will write to all of it: as a clone where the
#                                     file system can, and with the room for all of it reserved
#   memory.pl seal SOURCE             copies a file into memory that nobody can write to any more, says
#                                     "<descriptor>\n", and keeps it until standard input ends
use strict;
use warnings;
use POSIX ();

use constant { SEEK_DATA => 3, SEEK_HOLE => 4, PAGE => 4096, CHUNK => 1 << 20 };
use constant { F_ADD_SEALS => 1033, SEAL_ALL => 0x1 | 0x2 | 0x4 | 0x8 };
use constant { MFD_CLOEXEC => 1, MFD_ALLOW_SEALING => 2 };
use constant { FICLONE => 0x40049409, EOPNOTSUPP => 95 };
my %fallocate       = ( x86_64 => 285, aarch64 => 47 );
my %copy_file_range = ( x86_64 => 326, aarch64 => 285 );
my %memfd_create = ( x86_64 => 319, aarch64 => 279 );

my ( $mode, $source, $target ) = @ARGV;
open( my $in, '<:raw', $source ) or die "cannot read $source: $!\n";
my $size = -s $in;
my $out;
my $machine = ( POSIX::uname() )[4];
if ( $mode eq 'own' ) {
    umask 077;
    open( $out, '+>:raw', $target ) or die "cannot write $target: $!\n";
    my $cloned = ioctl( $out, FICLONE, fileno($in) );
    my $number = $fallocate{$machine} or die "fallocate(2) has no known number on $machine\n";
    my ( $from, $to ) = ( fileno($in), fileno($out) );
    # A guest that dirties a page for which there is no room any more dies of it.
    syscall( $number, $to, 0, 0, $size ) == 0 or $! == EOPNOTSUPP or die "cannot reserve $size bytes: $!\n";
    exit 0 if $cloned;
    truncate( $out, $size ) or die "cannot reserve $size bytes: $!\n";
    $number = $copy_file_range{$machine};
    my $end = 0;
    while ( defined( my $start = sysseek( $in, $end, SEEK_DATA ) ) ) {
        $end = sysseek( $in, $start, SEEK_HOLE );
        my ( $left, $in_at, $out_at ) = ( $end - $start, pack( 'q', $start ), pack( 'q', $start ) );
        while ( $left > 0 ) {
            my $copied = syscall( $number, $from, $in_at, $to, $out_at, $left, 0 );
            if ( $copied <= 0 ) {
                my $at = unpack( 'q', $in_at );
                sysseek( $in,  $at, 0 );
                sysseek( $out, $at, 0 );
                $copied = sysread( $in, my $chunk, $left < CHUNK ? $left : CHUNK );
                die "cannot read $source: " . ( $! || 'it ended early' ) . "\n" unless $copied;
                defined( syswrite( $out, $chunk ) ) or die "cannot write $target: $!\n";
                ( $in_at, $out_at ) = ( pack( 'q', $at + $copied ) ) x 2;
            }
            $left -= $copied;
        }
    }
    exit 0;
}
if ( $mode eq 'compact' ) {
    open( $out, '+>:raw', $target ) or die "cannot write $target: $!\n";
}
else {
    my $number = $memfd_create{$machine} or die "memfd_create(2) has no known number on $machine\n";
    my $name = "releap-template";
    my $fd = syscall( $number, $name, MFD_CLOEXEC | MFD_ALLOW_SEALING );
    die "memfd_create(2) failed: $!\n" if $fd < 0;
    open( $out, '+<&=:raw', $fd ) or die "cannot use descriptor $fd: $!\n";
}
truncate( $out, $size ) or die "cannot reserve $size bytes: $!\n";

my $zero = "\0" x PAGE;
my $end  = 0;
while ( defined( my $start = sysseek( $in, $end, SEEK_DATA ) ) ) {
    $end = sysseek( $in, $start, SEEK_HOLE );
    sysseek( $in, $start, 0 );
    for ( my $at = $start + 0 ; $at < $end ; ) {
        my $want = $end - $at < CHUNK ? $end - $at : CHUNK;
        my $got  = sysread( $in, my $chunk, $want );
        die "cannot read $source: " . ( $! || 'it ended early' ) . "\n" unless $got;
        for ( my $page = 0 ; $page < $got ; $page += PAGE ) {
            my $bytes = substr( $chunk, $page, PAGE );
            next if $bytes eq $zero;
            sysseek( $out, $at + $page, 0 );
            defined( syswrite( $out, $bytes ) ) or die "cannot write: $!\n";
        }
        $at += $got;
    }
}
if ( $mode eq 'seal' ) {
    fcntl( $out, F_ADD_SEALS, SEAL_ALL ) or die "cannot seal the memory: $!\n";
    $| = 1;
    print fileno($out), "\n";
    1 while <STDIN>;
}
