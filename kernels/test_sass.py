"""What `sass.py` makes of a disassembly: `python3 -m unittest discover --start-directory kernels`."""

import unittest

import sass

# As nvdisasm prints it, shortened: a loop in a loop, a branch ahead, and the branch to itself that ends every kernel.
TEXT = """\
\t.target\tsm_121a
//--------------------- .text.walk --------------------------
\t.section\t.text.walk,"ax",@progbits
walk:
.text.walk:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/                   LDGSTS.E.BYPASS.128 [R0], desc[UR16][R2.64] ;
.L_x_0:
        /*0020*/                   LDS R3, [R0] ;
        /*0030*/               @P1 BRA `(.L_x_2) ;
.L_x_1:
        /*0040*/                   LDSM.16.M88.4 R8, [R5] ;
        /*0050*/                   HMMA.16816.F32.BF16 R12, R8, R4, R12 ;
        /*0060*/              @!P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0070*/                   MUFU.EX2 R3, R3 ;
        /*0080*/          @!UP0 BRA.U UP1, `(.L_x_0) ;
        /*0090*/                   EXIT ;
.L_x_3:
        /*00a0*/                   BRA `(.L_x_3);
        /*00b0*/                   NOP;
\t.section\t.nv.info,"",@"SHT_CUDA_INFO"
"""


class Counts(unittest.TestCase):
    def test_a_loop_counts_without_the_loops_in_it_and_a_kernel_all_of_it(self):
        [walk, outer, inner] = sass.counts(TEXT)
        some = lambda count: {column: number for column, number in count.items() if number}
        self.assertEqual(walk[:2], ("walk", 0))
        self.assertEqual(some(walk[2]), {"mma": 1, "LDSM": 1, "LDS": 1, "LDGSTS": 1, "MUFU": 1, "all": 10})
        self.assertEqual((outer[0], outer[1], some(outer[2])), ("loop at 0x0020", 1, {"LDS": 1, "MUFU": 1, "all": 4}))
        self.assertEqual((inner[0], inner[1], some(inner[2])), ("loop at 0x0040", 2, {"mma": 1, "LDSM": 1, "all": 3}))

    def test_a_line_has_a_number_under_each_column(self):
        head, *lines = sass.table(sass.counts(TEXT), "sm_121a")
        self.assertEqual({len(line) for line in [head, *lines]}, {len(head)})


if __name__ == "__main__":
    unittest.main()
